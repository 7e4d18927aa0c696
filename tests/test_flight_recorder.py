"""The flight recorder: always on, bounded, written on demand and on death, and discreet where that
is asked for."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepahead import Engine, EngineDead, SamplingParams
from stepahead.actors.recording import (
    Recording,
    explain_request,
    read_recording,
    replay,
    timeline_of,
)
from stepahead.actors.recording import recorder as recorder_module
from stepahead.actors.recording import ring as ring_module
from stepahead.actors.recording.privacy import Tokens
from stepahead.actors.recording.reading import recording_of
from stepahead.actors.recording.writing import write_recording
from stepahead.actors.story import tell
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.device import StepAddress
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.messages import DecodeError, Generate, StepDone, StepPlan

from .engines import make_engine
from .eventful import call_in_many_ways

HASHES = {"PYTHONHASHSEED": "7"}
SECRET = "the launch code is 7351"
PARAMS = SamplingParams(max_tokens=12, stop=("never said",), stop_token_ids=(70,))


async def ask(engine: Engine) -> None:
    """Equal prompts, so that prefixes are found, in a pool that is too small for them."""
    await asyncio.gather(
        *(
            engine.generate(SECRET, PARAMS, request_id=f"r{n}", cache_salt="salted")
            for n in range(6)
        )
    )


def dumped(path: Path, tokens: Tokens) -> bytes:
    async def scenario() -> None:
        async with make_engine(num_blocks=24, max_num_seqs=4) as engine:
            await ask(engine)
            engine.recorder.dump(path, tokens)

    run_virtual(scenario())
    return path.read_bytes()


def token_bytes(text: str) -> bytes:
    return np.array([*text.encode()], dtype="<i4").tobytes()


def test_what_is_dumped_from_a_live_engine_is_whole_and_replays(tmp_path: Path) -> None:
    data = dumped(tmp_path / "dump", Tokens.KEPT)

    read = recording_of(data)
    assert read.end is not None
    assert read.end.is_live
    assert replay(read).difference is None
    assert token_bytes(SECRET) in data


def test_masked_tokens_are_others_and_the_plans_are_the_same(tmp_path: Path) -> None:
    data = dumped(tmp_path / "dump", Tokens.MASKED)

    assert token_bytes(SECRET[:6]) not in data
    assert b"salted" not in data
    assert b"never said" not in data
    masked = replay(recording_of(data))
    assert masked.difference is None
    kept = replay(recording_of(dumped(tmp_path / "kept", Tokens.KEPT)))
    assert (masked.steps, masked.messages) == (kept.steps, kept.messages)


def test_two_masked_dumps_use_different_alphabets(tmp_path: Path) -> None:
    prompts = [
        [e.message.prompt.tolist() for _, t in recording_of(data).turns for e in t.envelopes
         if isinstance(e.message, Generate)]
        for data in (dumped(tmp_path / "dump", Tokens.MASKED) for _ in range(2))
    ]  # fmt: skip

    assert prompts[0] != prompts[1]


def test_dropped_tokens_are_gone_and_it_explains_and_draws_but_does_not_replay(
    tmp_path: Path,
) -> None:
    data = dumped(tmp_path / "dump", Tokens.DROPPED)

    read = recording_of(data)
    done = [
        e.message for _, t in read.turns for e in t.envelopes if isinstance(e.message, StepDone)
    ]
    assert all((message.token_ids == 0).all() for message in done)
    assert token_bytes(SECRET[:3]) not in data
    assert "admitted" in tell(explain_request(read, "r3"))
    assert timeline_of(read).spans
    with pytest.raises(DecodeError, match="written without token ids; it explains and draws"):
        replay(read)


def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "LEAST_MESSAGES", 100)
    monkeypatch.setattr(ring_module, "MOST_MESSAGES", 100)
    monkeypatch.setattr(recorder_module, "MOST_BYTES", 150_000)


def ring_of_an_eventful_run(monkeypatch: pytest.MonkeyPatch, path: Path, size: int) -> Recording:
    """What a ring keeps whose segments hold so many turns."""
    small_ring(monkeypatch)
    monkeypatch.setattr(ring_module, "LEAST_MESSAGES", size)
    monkeypatch.setattr(ring_module, "MOST_MESSAGES", size)

    async def scenario() -> None:
        async with make_engine(
            num_blocks=24, max_model_len=64, oracle=Oracle(eos_every=200), num_host_blocks=8
        ) as engine:
            await call_in_many_ways(engine)
            engine.recorder.dump(path)

    run_virtual(scenario())
    return read_recording(path)


@pytest.mark.parametrize("size", [40, 61, 83, 120])
def test_what_is_left_of_a_run_begins_with_the_state_of_the_cores_and_replays(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = ring_of_an_eventful_run(monkeypatch, tmp_path / "dump", size)

    assert recording.opening is not None
    assert recording.opening.seq > 100
    replayed = replay(recording)
    assert replayed.difference is None
    assert replayed.steps > 10


def test_another_process_replays_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring_of_an_eventful_run(monkeypatch, tmp_path / "dump", 61)
    code = "import sys; from stepahead.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "replay", str(tmp_path / "dump")]

    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **HASHES})

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("identical: ")


def test_a_state_that_was_tampered_with_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = ring_of_an_eventful_run(monkeypatch, tmp_path / "dump", 61)
    batcher, *others = recording.state[1]  # type: ignore[index]  # the three parts of a state
    for name in ("subprocess:Popen", "stepahead.messages.errors:EngineDead", "nowhere"):
        wrong = ["tuple", [["object", 0, name, batcher[3]], *others]]

        with pytest.raises(DecodeError, match="no part of the cores"):
            replay(replace(recording, state=wrong))


@pytest.mark.parametrize("size", [40, 61, 83])
def test_the_state_is_masked_with_the_messages_and_replays(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = ring_of_an_eventful_run(monkeypatch, tmp_path / "dump", size)
    assert token_bytes("is the b") in (tmp_path / "dump").read_bytes()

    write_recording(recording, tmp_path / "masked", Tokens.MASKED)

    assert token_bytes("is t") not in (tmp_path / "masked").read_bytes()
    masked = replay(read_recording(tmp_path / "masked"))
    assert masked.difference is None
    assert masked.steps == replay(recording).steps


def test_without_its_state_a_ring_explains_and_draws_and_says_that_it_does_not_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = ring_of_an_eventful_run(monkeypatch, tmp_path / "dump", 61)
    stateless = replace(recording, state=None)

    with pytest.raises(DecodeError, match="without the state of its cores; it explains and draws"):
        replay(stateless)
    assert timeline_of(stateless).spans


def test_memory_is_bounded_by_dropping_the_oldest_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_ring(monkeypatch)

    async def scenario() -> tuple[int, int, int]:
        async with make_engine(num_blocks=64) as engine:
            for _ in range(30):
                await ask(engine)
            segments = engine.recorder._ring.segments
            messages = [len(segment.parts) // ring_module.PARTS for segment in segments]
            return sum(messages), engine._started.journal.last_seq, len(segments)

    kept, posted, num_segments = run_virtual(scenario())

    assert num_segments >= 2
    assert kept < posted / 3


def test_a_dying_engine_writes_its_last_messages_where_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = SimulatedDevice.launch

    def fragile(self: SimulatedDevice, plan: StepPlan, done: StepAddress) -> None:
        if plan.step > 5:
            raise OSError("the card has fallen off the bus")
        launch(self, plan, done)

    monkeypatch.setattr(SimulatedDevice, "launch", fragile)

    async def scenario() -> None:
        async with make_engine(record_failure=tmp_path / "failure") as engine:
            await ask(engine)

    with pytest.raises(EngineDead):
        run_virtual(scenario())

    read = read_recording(tmp_path / "failure")
    assert read.end is not None
    assert read.end.failure is not None
    assert read.end.failure.actor == "executor"
    assert read.header.tokens == Tokens.MASKED
    assert replay(read).difference is None


def test_an_engine_that_does_not_die_writes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make_engine(record_failure=str(tmp_path / "failure")) as engine:
            await ask(engine)

    run_virtual(scenario())

    assert list(tmp_path.iterdir()) == []
