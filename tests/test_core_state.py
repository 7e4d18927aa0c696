"""The state of the cores, captured between any two turns: new cores that are filled with it go on
exactly like the first."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from stepahead.actors.cores import Cores
from stepahead.actors.journal import Envelope
from stepahead.actors.kvpool import PoolAnswer, PoolQuestion
from stepahead.actors.opening import Opening
from stepahead.actors.recording import Recording, read_recording, replay
from stepahead.actors.recording.reading import recording_of
from stepahead.actors.recording.snapshot import Snapshot
from stepahead.actors.recording.state import state_of
from stepahead.actors.recording.state_codec import pack_state
from stepahead.actors.recording.writing import pieces
from stepahead.messages import Message

from .simulation.draw import draw_script
from .simulation.life import live

QUESTIONS, ANSWERS = get_args(PoolQuestion), get_args(PoolAnswer)


def openings(recording: Recording) -> list[tuple[int, int]]:
    """Turns of the Scheduler that ask the pool at once: (place, number of the question)."""
    cores = [
        (place, heard)
        for place, heard in enumerate(recording.turns)
        if heard.actor in ("scheduler", "kvpool")
    ]
    found = []
    for (place, heard), (_, following) in pairwise(cores):
        first, asked = heard.turn.envelopes[0].message, following.turn.envelopes[0]
        is_own = heard.actor == "scheduler" and not isinstance(first, ANSWERS)
        if is_own and isinstance(asked.message, QUESTIONS):
            found.append((place, asked.seq))
    return found


def from_there_on(recording: Recording, place: int, question: int) -> Recording:
    """The rest of a recording from that turn on, as it is read from a file."""
    turn = recording.turns[place].turn
    captured: list[tuple[Opening, object]] = []

    def watch(actor: str, envelope: Envelope[Message], cores: Cores) -> bool:
        if envelope is not turn.envelopes[0]:
            return True
        opening = Opening(turn.t_ns, question - 1, *cores.batcher.owners)
        captured.append((opening, state_of(Snapshot(cores))))
        return False

    replay(recording, watch=watch)
    ((opening, state),) = captured
    rest = replace(recording, turns=recording.turns[place:], opening=opening, state=state)
    return recording_of(b"".join(pieces(rest)))


@pytest.mark.parametrize("seed", range(8))
def test_what_follows_any_turn_of_a_rough_life_replays_from_its_state_alone(
    seed: int, tmp_path: Path
) -> None:
    script = draw_script(seed)
    script = replace(script, settings=replace(script.settings, drafts=()))
    live(script, record=tmp_path / "recording")
    recording = read_recording(tmp_path / "recording")
    places = openings(recording)
    assert places

    for share in (0.2, 0.5, 0.9):
        place, question = places[int(len(places) * share)]
        rest = from_there_on(recording, place, question)

        assert rest.state is not None
        assert replay(rest).difference is None


@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_stays_as_it_was_while_the_cores_go_on(seed: int, tmp_path: Path) -> None:
    script = draw_script(seed)
    script = replace(script, settings=replace(script.settings, drafts=()))
    live(script, record=tmp_path / "recording")
    recording = read_recording(tmp_path / "recording")
    places = openings(recording)
    turns = [recording.turns[place].turn for place, _ in places[:: -(-len(places) // 6)]]
    taken: list[tuple[Snapshot, bytes]] = []

    def watch(actor: str, envelope: Envelope[Message], cores: Cores) -> bool:
        if any(envelope is turn.envelopes[0] for turn in turns):
            snapshot = Snapshot(cores)
            taken.append((snapshot, pack_state(state_of(snapshot))))
        return True

    replay(recording, watch=watch)

    assert len(taken) == len(turns)
    for snapshot, at_once in taken:
        assert pack_state(state_of(snapshot)) == at_once
