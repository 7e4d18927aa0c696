"""The flight recorder as a user of the command line meets it."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path

import pytest

from stepahead import Engine, EngineConfig, EngineDead
from stepahead.actors.recording import read_recording, replay
from stepahead.actors.recording.privacy import Tokens
from stepahead.cli.flight import WRITER
from stepahead.cli.main import main
from stepahead.cli.runner import running_engine
from stepahead.gpu.device import StepAddress
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.messages import SamplingParams, StepPlan

CONFIG = EngineConfig(device="simulated")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


def run(scenario: Coroutine[None, None, None]) -> None:
    """As a process does, wait for what is still written when it is over."""
    asyncio.run(scenario)
    for thread in threading.enumerate():
        if thread.name == WRITER:
            thread.join()


async def ask(tokens: int = 5) -> None:
    async with running_engine(CONFIG) as engine:
        await engine.generate("Once upon a time", SamplingParams(max_tokens=tokens))
        if hasattr(signal, "SIGUSR1"):
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_signal_writes_the_last_messages_with_masked_tokens(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(ask())

    (path,) = folder.iterdir()
    assert f"the last messages were written to {path}" in capsys.readouterr().err
    read = read_recording(path)
    assert read.header.tokens == Tokens.MASKED
    assert replay(read).difference is None


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_signal_while_the_model_is_loaded_or_the_engine_closes_ends_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start, close = Engine.start, Engine.close

    async def signalled() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.05)

    async def signalled_start(self: Engine) -> None:
        await signalled()
        await start(self)

    async def signalled_close(self: Engine) -> None:
        await signalled()
        await close(self)

    monkeypatch.setattr(Engine, "start", signalled_start)
    monkeypatch.setattr(Engine, "close", signalled_close)

    async def scenario() -> None:
        async with running_engine(CONFIG) as engine:
            await engine.generate("Once upon a time", SamplingParams(max_tokens=5))

    run(scenario())

    (path,) = folder.iterdir()
    first, second = capsys.readouterr().err.splitlines()
    assert first == "engine-cli: the model is being loaded; there are no messages to write yet"
    assert second == f"engine-cli: the last messages were written to {path}"
    assert replay(read_recording(path)).difference is None


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_signal_before_and_after_there_is_an_engine_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def signalled(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr("stepahead.cli.options.configure_logs", signalled)
    monkeypatch.setattr("stepahead.cli.runner.tell_of_death", signalled)

    assert main(["generate", "once", "--device", "simulated", "--max-tokens", "2"]) == 0
    signalled()


def test_a_death_is_written_and_told_where(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: SimulatedDevice, plan: StepPlan, done: StepAddress) -> None:
        raise OSError("the card has fallen off the bus")

    monkeypatch.setattr(SimulatedDevice, "launch", broken)

    with pytest.raises(EngineDead):
        run(ask())

    (path,) = folder.iterdir()
    assert f"last messages were written to {path}" in capsys.readouterr().err
    read = read_recording(path)
    assert read.end is not None
    assert str(read.end.failure) == "OSError: the card has fallen off the bus"


def test_a_quiet_run_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: None)

    run(ask())

    assert list(folder.iterdir()) == []
    assert "messages" not in capsys.readouterr().err
