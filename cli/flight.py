"""The flight recorder on the command line: a signal writes the last messages, and so does death.

Tokens are masked, so that a file can be passed on: it still explains, draws and replays.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..actors.config import EngineConfig
    from ..actors.engine import Engine
    from ..actors.recording.recorder import Flight


WRITER = "stepahead-last-messages"


def with_failure_path(config: "EngineConfig") -> "EngineConfig":
    """Its death is to be written, wherever nothing else was said."""
    if config.record_failure is not None:
        return config
    return replace(config, record_failure=_path("failure"))


class DumpOnSignal:
    """SIGUSR1 writes what the recorder of the engine keeps that is in use by then.

    It is there before an engine is, since the signal would end a process that is not prepared.
    """

    def __init__(self) -> None:
        self.engine: Callable[[], Engine | None] = lambda: None  # None: its model is being loaded
        self.tell: Callable[[str], None] = (
            tell  # or who knows what is on the screen; it is called in a thread, too
        )
        self._numbers = count(1)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """For the length of the block."""
        loop, number = asyncio.get_running_loop(), getattr(signal, "SIGUSR1", None)
        if number is None:
            yield
            return
        before = signal.getsignal(number)
        loop.add_signal_handler(number, self._dump)
        try:
            yield
        finally:
            loop.remove_signal_handler(number)
            if before is not None:  # else it was none of Python's
                signal.signal(number, before)

    def _dump(self) -> None:
        """In a thread, since a full ring takes seconds; the process waits for it."""
        engine = self.engine()
        if engine is None:
            self.tell("the model is being loaded; there are no messages to write yet")
            return
        path = _path(str(next(self._numbers)))
        Thread(target=self._write, args=(engine.recorder.flight, path), name=WRITER).start()

    def _write(self, flight: "Flight", path: Path) -> None:
        from ..actors.recording.privacy import Tokens

        try:
            flight.dump(path, Tokens.MASKED)
        except OSError as error:
            self.tell(f"cannot write {path}: {error.strerror}")
        else:
            self.tell(f"the last messages were written to {path}")


def tell_of_death(config: "EngineConfig") -> None:
    """Where what led to it was written, if anything was."""
    path = config.record_failure
    if path is not None and Path(path).exists():
        tell(f"the engine's last messages were written to {path}; see engine-cli replay, explain")


def _path(what: str) -> Path:
    return Path(tempfile.gettempdir()) / f"stepahead-{os.getpid()}-{what}.recording"


def tell(what: str) -> None:
    """On standard error."""
    print(f"engine-cli: {what}", file=sys.stderr, flush=True)
