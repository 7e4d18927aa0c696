"""Faults planted in the cores: the simulation must find each, shrink it, and let it be replayed.

Most are those that the lives of the cores alone must find, too (tests/test_planted_faults.py).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from stepahead.actors.batching import admission
from stepahead.actors.batching.ledger import Ledger
from stepahead.actors.batching.roster import Roster
from stepahead.actors.batching.sequence import Sequence
from stepahead.actors.recording import read_recording, replay
from stepahead.cli.main import main
from stepahead.kvpool.tables import BlockTables

from . import test_planted_faults as planted
from .simulation.draw import draw_script
from .simulation.life import Violation, live
from .simulation.report import report_failure
from .simulation.script import Script, Settings, Submit
from .simulation.shrink import shrink

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = 200  # lives in which a fault must show


def an_aborted_request_stays_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    remove = Roster.remove

    def leaky(self: Roster, sequence: Sequence) -> None:
        remove(self, sequence)
        if sequence.slot is None:
            self.waiting.add(sequence)

    patch.setattr(Roster, "remove", leaky)


def a_prefix_is_given_away_from_its_head(patch: pytest.MonkeyPatch) -> None:
    drop = BlockTables.drop

    def forwards(self: BlockTables, table: list[int], kept: int, fence: int) -> None:
        table[kept:] = table[kept:][::-1]
        drop(self, table, kept, fence)

    patch.setattr(BlockTables, "drop", forwards)


def placeholders_stay_after_a_preemption(patch: pytest.MonkeyPatch) -> None:
    preempt = Ledger.preempt

    def forgetful(self: Ledger, slot: int, kept_blocks: int) -> None:
        scheduled = int(self.scheduled[slot])
        preempt(self, slot, kept_blocks)
        self.scheduled[slot] = scheduled

    patch.setattr(Ledger, "preempt", forgetful)


def preemptions_have_no_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "MAX_PREEMPTIONS", 10**9)


FAULTS: list[Plant] = [
    planted.blocks_are_published_before_a_step_writes_them,
    planted.blocks_are_free_before_the_step_that_uses_them_is_done,
    planted.a_late_row_is_applied_to_the_next_owner_of_the_slot,
    planted.a_sequence_is_resumed_before_its_rows_are_done,
    planted.every_victim_is_taken_for_one_block,
    planted.one_token_too_many_is_generated,
    planted.a_token_that_arrives_after_a_preemption_is_lost,
    preemptions_have_no_bound,
    planted.prefixes_are_found_whatever_their_salt,
    an_aborted_request_stays_in_the_queue,
    a_prefix_is_given_away_from_its_head,
    placeholders_stay_after_a_preemption,
]


def seed_that_shows_it() -> int:
    for seed in range(SEEDS):
        try:
            live(draw_script(seed))
        except Violation:
            return seed
    raise AssertionError("no life shows the fault")


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_simulation_finds(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    seed_that_shows_it()  # asserts


def test_a_fault_is_shrunk_and_recorded_and_its_failure_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        planted.a_sequence_is_resumed_before_its_rows_are_done(patch)
        seed = seed_that_shows_it()
        recording = tmp_path / f"seed-{seed}.recording"
        said = report_failure(seed, tmp_path)

        assert len(shrink(draw_script(seed)).operations) <= 3
        assert "AssertionError: runs beside a former epoch" in said
        assert main(["replay", str(recording)]) == 0
        replayed = capsys.readouterr().out.splitlines()
        assert replayed[0].startswith("identical: ")
        assert replayed[1].endswith("scheduler failed: AssertionError: runs beside a former epoch")

    assert main(["replay", str(recording)]) == 1, "without the fault it is another run"


def test_a_failure_that_only_callers_see_is_in_the_recording_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.one_token_too_many_is_generated(monkeypatch)
    with pytest.raises(Violation, match="a token after the end"):
        live(Script(Settings(), (Submit(name="r"),)), record=tmp_path / "recording")

    replayed = replay(read_recording(tmp_path / "recording"))

    assert replayed.difference is None
    assert replayed.failure is not None
    assert "a token after the end" in replayed.failure.text
