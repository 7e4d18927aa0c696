"""Recordings that begin while structured answers are being said: their grammars are led along what
was said before, and go on as they did."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepahead import SamplingParams
from stepahead.actors.batching import Grammars
from stepahead.actors.recording import Recording, read_recording, replay
from stepahead.actors.recording import recorder as recorder_module
from stepahead.actors.recording import ring as ring_module
from stepahead.actors.recording.privacy import Tokens
from stepahead.actors.recording.reading import recording_of
from stepahead.actors.recording.structures import grammars_for
from stepahead.actors.recording.writing import pieces
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.main import main
from stepahead.messages import DecodeError

from .engines import make_engine
from .grammars import ScriptedGrammars
from .openings import from_there_on, openings
from .test_structured_output import STRUCTURES
from .test_structured_rows import Desk


async def ask(dump: Path, **options: Any) -> None:
    """Every structure, in answers that have room and in such that are cut short, in a pool that is
    too small; the ring is dumped while the last of them are being said."""
    async with make_engine(num_blocks=40, max_num_seqs=4, **options) as engine:
        structures = [*STRUCTURES.values(), None, *STRUCTURES.values()]
        asked = [
            asyncio.ensure_future(
                engine.generate(
                    f"say {number}",
                    SamplingParams(max_tokens=16 + 6 * number, structured_output=structure),
                    priority=number % 2,
                )
            )
            for number, structure in enumerate(structures)
        ]
        await asyncio.wait(asked[:-2])
        engine.recorder.dump(dump)
        await asyncio.gather(*asked)


def masks_in(state: Any) -> Iterator[Any]:
    """What the sequences in a captured state may say next, where they follow a grammar."""
    match state:
        case ["object", _, str() as name, values]:
            mask = values.get("mask", [])
            if name.endswith(".sequence:Sequence") and mask[0] == "array" and len(mask[2]):
                yield mask[2]
            for part in values.values():
                yield from masks_in(part)
        case [_, _, list() as parts, *_] | ["tuple", list() as parts]:
            for part in parts:
                yield from masks_in(part)
        case [_, dict() as parts]:
            for part in parts.values():
                yield from masks_in(part)


def replay_from_places(recording: Recording, grammars: Grammars, count: int) -> int:
    """Replay what follows each of so many turns from its state alone; returns how many grammars
    were led along."""
    places, led = openings(recording), 0
    for place, first in places[:: -(-len(places) // count)]:
        rest = from_there_on(recording, place, first, grammars)
        led += len(list(masks_in(rest.state)))
        assert replay(rest, grammars=grammars).difference is None
    return led


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_what_follows_any_turn_replays_with_grammars_that_are_led_along_their_tokens(
    backend: str, tmp_path: Path
) -> None:
    pytest.importorskip(backend)
    run_virtual(ask(tmp_path / "dump", record=tmp_path / "whole", grammar_backend=backend))
    recording = read_recording(tmp_path / "whole")
    grammars = grammars_for(recording, None)
    assert grammars is not None

    assert replay_from_places(recording, grammars, 4) > 4


@pytest.mark.parametrize("seed", range(3))
def test_grammars_of_every_kind_go_on_from_any_turn(seed: int, tmp_path: Path) -> None:
    """Those that jump, refuse, end or lead nowhere; with rows held and rows at rest."""
    desk = Desk(seed, tmp_path / "recording")
    desk.live()
    desk.recorder.save()

    led = replay_from_places(read_recording(tmp_path / "recording"), ScriptedGrammars(), 6)

    assert led > 3


def ring(path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A ring that dropped its beginning, and begins in the middle of structured answers."""
    monkeypatch.setattr(ring_module, "MOST_MESSAGES", 30)
    monkeypatch.setattr(recorder_module, "LEAST_MESSAGES", 30)
    monkeypatch.setattr(recorder_module, "MOST_BYTES", 40_000)
    run_virtual(ask(path))
    return read_recording(path)


def test_a_ring_that_begins_in_the_middle_of_structured_answers_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = ring(tmp_path / "dump", monkeypatch)

    assert recording.opening is not None
    assert list(masks_in(recording.state))
    assert main(["replay", str(tmp_path / "dump")]) == 0
    assert capsys.readouterr().out.startswith("identical: ")


def test_masked_it_tells_nothing_of_what_they_might_have_said_next_and_does_not_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = ring(tmp_path / "dump", monkeypatch)
    assert any(mask.any() for mask in masks_in(recording.state))

    masked = recording_of(b"".join(pieces(recording, Tokens.MASKED)))

    masks = list(masks_in(masked.state))
    assert masks
    assert not any(mask.any() for mask in masks)
    with pytest.raises(DecodeError, match="what they had to follow was left out with the tokens"):
        grammars_for(masked, None)


@pytest.mark.parametrize(
    ("ends", "why"), [("#", "goes on in another way"), ("abc", "allows no text")]
)
def test_what_another_model_would_not_have_said_is_refused_in_a_sentence(
    ends: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = ring(tmp_path / "dump", monkeypatch)
    header = replace(recording.header, eos_token_ids=tuple(ends.encode()))
    other = replace(recording, header=header)

    with pytest.raises(DecodeError, match=f"cannot be restored: .*{why}"):
        replay(other, grammars=grammars_for(other, None))
    with pytest.raises(DecodeError, match="there are no grammars"):
        replay(recording)
