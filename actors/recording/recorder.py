"""The recorder: always on. It keeps the last messages of an engine, or all where that is wanted.

While the engine runs, a message costs an append: messages do not change, so references suffice.
They are encoded when they are written.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from ...gpu.device import DeviceFacts
from ...messages import ConfigError, Message
from ..cores import Cores, CoreSetup
from ..journal import Journal, Turn
from ..kvpool import PoolAnswer
from ..opening import Opening
from .format import End, Header
from .reading import Recording
from .ring import Ring
from .writing import write_recording

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20
_ANSWERS = get_args(PoolAnswer)


class Recorder:
    """Records one engine from its first message on.

    Without a path it keeps the last messages, in about `MOST_BYTES`; with one it keeps them all, to
    be written when the engine is over. What is written holds prompts and answers.
    """

    def __init__(self, header: Header, journal: Journal, path: Path | None = None) -> None:
        self._path = path
        self._header = header
        self._journal = journal
        self._open: Callable[[int], Opening] | None = None
        self._ring = Ring(MOST_BYTES)
        self._is_over = False
        self._extend = self._ring.segments[-1].parts.extend
        self._room = self._ring.room
        journal.attach(self._hear)

    def watch(self, cores: Cores) -> None:
        """The cores are there, so that segments can be opened; a whole recording has but one."""
        if self._path is None:
            self._open = cores.opening

    def _hear(self, actor: str, turn: Turn[Message]) -> None:
        """A sink: it costs every message, so it does next to nothing."""
        self._room -= 1
        if self._room <= 0 and actor == "scheduler":
            self._rotate(turn)
        number, turn_ns, envelopes = turn
        for seq, t_ns, message in envelopes:
            self._extend((actor, number, turn_ns, seq, t_ns, message))

    def _rotate(self, turn: Turn[Message]) -> None:
        """Before a turn of the Scheduler, when no question is open, a segment may begin."""
        if self._open is None or isinstance(turn.envelopes[0].message, _ANSWERS):
            return
        self._extend = self._ring.open(self._open(turn.t_ns)).parts.extend
        self._room = self._ring.room

    @property
    def recording(self) -> Recording:
        """What is kept, as if it had been read."""
        segments = self._ring.segments
        opening = segments[0].opening
        begun = self._ring.begun if opening is not None else ()
        turns = tuple(heard for segment in segments for heard in segment.turns)
        end = End(self._journal.failure, is_live=not self._is_over)
        return Recording(self._header, turns, end, opening=opening, begun=begun)

    def dump(self, path: str | Path) -> None:
        """Write what is kept, now. Raises OSError where that is impossible."""
        write_recording(self.recording, Path(path))

    def save(self) -> None:
        """The engine is over. Write the whole, if that was wanted; its answers were given, so a
        failure is logged."""
        self._is_over = True
        if self._path is None:
            return
        try:
            self.dump(self._path)
        except OSError as error:
            logger.error("cannot write the recording %s: %s", self._path, error.strerror or error)


def check_writable(record: str | Path | None) -> None:
    """Find out at once, since the file is written at the end; a file that is there stays as it is
    until then. Raises ConfigError."""
    if record is None:
        return
    path = Path(record)
    try:
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"cannot record to {path}: {error.strerror or error}") from error


def open_recorder(
    record: str | Path | None, setup: CoreSetup, facts: DeviceFacts, journal: Journal
) -> Recorder:
    """A recorder of what is about to be built."""
    header = Header(setup=setup, model=facts.model, device=facts.device)
    return Recorder(header, journal, None if record is None else Path(record))
