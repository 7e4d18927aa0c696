"""A recording goes into its file as the engine runs: what is in there survives the process, and
what is not there yet takes bounded memory."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stepahead import SamplingParams
from stepahead.actors.recording import file as file_module
from stepahead.actors.recording import read_recording, replay
from stepahead.actors.recording import recorder as recorder_module
from stepahead.actors.recording import ring as ring_module
from stepahead.actors.virtual_time import run_virtual
from stepahead.messages import ConfigError

from .engines import make_engine

PARAMS = SamplingParams(max_tokens=40)
KILLED = """
import asyncio, os, signal, sys
from stepahead import Engine, EngineConfig, SamplingParams

async def main(path):
    async with Engine(EngineConfig(model="toy", device="simulated", record=path)) as engine:
        while os.path.getsize(path) < 50_000:
            await engine.generate([5, 6, 7], SamplingParams(max_tokens=20))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1]))
"""


async def ask_many(path: Path, count: int) -> None:
    async with make_engine(record=path) as engine:
        await asyncio.gather(*(engine.generate("x" * n, PARAMS) for n in range(1, count)))


def test_what_a_killed_process_recorded_is_read_and_replays(tmp_path: Path) -> None:
    path = tmp_path / "recording"

    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)

    assert done.returncode == -signal.SIGKILL
    read = read_recording(path)
    assert read.end is None
    replayed = replay(read)
    assert replayed.difference is None
    assert replayed.steps > 10


def test_of_a_whole_recording_memory_holds_no_more_than_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "MOST_WAITING", 16)
    monkeypatch.setattr(ring_module, "LEAST_MESSAGES", 100)
    monkeypatch.setattr(ring_module, "MOST_MESSAGES", 100)
    monkeypatch.setattr(recorder_module, "MOST_BYTES", 150_000)
    waiting: list[int] = []

    async def scenario() -> tuple[int, int]:
        async with make_engine(record=tmp_path / "recording") as engine:
            file = engine.recorder._file
            assert file is not None
            engine._started.journal.attach(lambda _actor, _turn: waiting.append(len(file._waiting)))
            for _ in range(10):
                await asyncio.gather(*(engine.generate("x" * n, PARAMS) for n in range(1, 5)))
            turns = len(list(engine.recorder.flight.kept.turns))
            return turns, len(waiting)

    kept, heard = run_virtual(scenario())

    assert kept < heard / 2
    assert max(waiting) <= 17
    read = read_recording(tmp_path / "recording")
    assert len(read.turns) >= heard
    assert replay(read).difference is None


def test_a_disk_that_takes_nothing_ends_the_recording_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_module, "MOST_WAITING", 16)
    monkeypatch.setattr(file_module, "PATIENCE_S", 0.05)
    os.mkfifo(tmp_path / "recording")
    reader = os.open(tmp_path / "recording", os.O_RDONLY | os.O_NONBLOCK)

    run_virtual(ask_many(tmp_path / "recording", 120))  # more than a pipe holds

    assert "cannot go on with the recording" in caplog.text
    assert "the disk takes nothing" in caplog.text
    os.close(reader)


def test_a_full_disk_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="cannot record to /dev/full: No space left on device"):
        run_virtual(ask_many(Path("/dev/full"), 2))


def test_an_engine_that_is_over_leaves_no_thread(tmp_path: Path) -> None:
    run_virtual(ask_many(tmp_path / "recording", 3))

    assert "stepahead-recording" not in [thread.name for thread in threading.enumerate()]
