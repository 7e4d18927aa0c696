"""Recording into a file as it goes: a thread encodes and writes, and the engine does not wait.

What was written stays when the process is killed: every message is a frame of its own, so the file
is read up to where it ends.
"""

import logging
import time
from collections import deque
from io import FileIO
from pathlib import Path
from threading import Event, Thread

from ...messages import ConfigError, Message
from ...messages.frames import Frame, sealed
from ..journal import Turn
from .format import MAGIC, End, Header

logger = logging.getLogger(__name__)

EVERY_S = 0.1  # the thread writes what has come
MOST_WAITING = 4_096  # turns that wait to be written
PATIENCE_S = 10.0  # that the engine waits for a disk that is so far behind
CHUNK_BYTES = 2**16


class RecordingFile:
    """A whole recording of an engine, from its first message on; `hear` is a sink.

    A disk that fails, or that takes nothing for very long, ends the recording and not the engine.
    """

    def __init__(self, path: Path, header: Header) -> None:
        """Raises ConfigError where the file cannot be written."""
        self._path = path
        self._waiting: deque[tuple[str, Turn[Message]]] = deque()
        self._has_room = Event()
        self._wake = Event()
        self._end: End | None = None
        self._is_given_up = False
        try:
            self._file = _begun(path, MAGIC + sealed(header.packed()))
        except OSError as error:
            raise ConfigError(f"cannot record to {path}: {error.strerror or error}") from error
        self._thread = Thread(target=self._run, name="stepahead-recording", daemon=True)
        self._thread.start()

    def hear(self, actor: str, turn: Turn[Message]) -> None:
        """A sink: what messages hold does not change, so references suffice."""
        self._waiting.append((actor, turn))
        if len(self._waiting) > MOST_WAITING:
            self._wait_for_room()

    def close(self, end: End) -> None:
        """There is no more to come. Returns once everything is written, or given up."""
        self._end = end
        self._wake.set()
        if not self._is_given_up:
            self._thread.join()

    def _wait_for_room(self) -> None:
        """The thread is far behind: memory is bounded, and nothing is left out."""
        if self._is_given_up:
            self._waiting.clear()
            return
        self._has_room.clear()
        self._wake.set()
        if len(self._waiting) > MOST_WAITING and not self._has_room.wait(PATIENCE_S):
            self._give_up("the disk takes nothing")

    def _give_up(self, why: str) -> None:
        if not self._is_given_up:
            logger.error("cannot go on with the recording %s: %s", self._path, why)
        self._is_given_up = True
        self._has_room.set()

    # In the thread

    def _run(self) -> None:
        try:
            with self._file:
                while self._end is None and not self._is_given_up:
                    self._write_what_waits()
                    self._wake.wait(EVERY_S)
                    self._wake.clear()
                self._write_what_waits()
                if self._end is not None and not self._is_given_up:
                    self._write(sealed(self._end.packed()))
        except Exception as error:  # whatever it is: it ends the recording, and not the engine
            self._give_up(str(error))

    def _write_what_waits(self) -> None:
        chunk = bytearray()
        while self._waiting and not self._is_given_up:
            actor, turn = self._waiting.popleft()
            for seq, t_ns, message in turn.envelopes:
                frame = Frame(seq, t_ns, actor, turn.number, turn.t_ns, message)
                chunk += sealed(frame.packed())
            if len(chunk) >= CHUNK_BYTES:
                self._write(chunk)
                chunk.clear()
            if not self._has_room.is_set() and len(self._waiting) <= MOST_WAITING // 2:
                self._has_room.set()
            time.sleep(0)  # the engine's own thread comes first
        if chunk:
            self._write(chunk)

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]


def _begun(path: Path, data: bytes) -> FileIO:
    """A new file that begins so. Raises OSError."""
    file = path.open("wb", buffering=0)
    try:
        file.write(data)
    except OSError:
        file.close()
        raise
    return file
