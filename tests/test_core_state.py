"""The state of the cores, captured between any two turns: new cores that are filled with it go on
exactly like the first."""

from dataclasses import replace
from pathlib import Path

import pytest

from stepahead.actors.cores import Cores
from stepahead.actors.journal import Envelope
from stepahead.actors.recording import read_recording, replay
from stepahead.actors.recording.snapshot import Snapshot
from stepahead.actors.recording.state import state_of
from stepahead.actors.recording.state_codec import pack_state
from stepahead.messages import Message

from .openings import from_there_on, openings
from .simulation.draw import draw_script
from .simulation.life import live


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
        place, first = places[int(len(places) * share)]
        rest = from_there_on(recording, place, first)

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
