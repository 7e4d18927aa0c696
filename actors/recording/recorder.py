"""The recorder: always on. It keeps the last messages of an engine, or all where that is wanted.

While the engine runs, a message costs an append: messages do not change, so references suffice.
They are encoded when they are written.
"""

import logging
from pathlib import Path
from typing import get_args

from ...gpu.device import DeviceFacts
from ...messages import ConfigError, Message
from ..config import EngineConfig
from ..cores import Cores, CoreSetup
from ..journal import Journal, Turn
from ..kvpool import PoolAnswer
from .format import End, Header
from .privacy import Tokens
from .reading import Recording
from .ring import Ring
from .state import NotCapturable, capture
from .writing import write_recording

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20
_ANSWERS = get_args(PoolAnswer)


class Recorder:
    """Records one engine from its first message on.

    Without a path it keeps the last messages, in about `MOST_BYTES`; with one it keeps them all, to
    be written when the engine is over. What an actor's failure ends is written to `failure_path`,
    with masked tokens; else what is written holds prompts and answers, unless `dump` is asked for
    less.
    """

    def __init__(
        self,
        header: Header,
        journal: Journal,
        path: Path | None = None,
        *,
        failure_path: Path | None = None,
    ) -> None:
        self._path = path
        self._failure_path = failure_path
        self._header = header
        self._journal = journal
        self._cores: Cores | None = None
        self._ring = Ring(MOST_BYTES)
        self._is_over = False
        self._extend = self._ring.segments[-1].parts.extend
        self._room = self._ring.room
        self._detach = journal.attach(self._hear)

    def watch(self, cores: Cores) -> None:
        """The cores are there, so that segments can be opened; a whole recording has but one."""
        if self._path is None:
            self._cores = cores

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
        cores = self._cores
        if cores is None or isinstance(turn.envelopes[0].message, _ANSWERS):
            return
        try:
            state = capture(cores)
        except NotCapturable:  # the segment explains and draws, and cannot be replayed
            state = None
        self._extend = self._ring.open(cores.opening(turn.t_ns), state).parts.extend
        self._room = self._ring.room

    @property
    def recording(self) -> Recording:
        """What is kept, as if it had been read."""
        segments = self._ring.segments
        opening, state = segments[0].opening, segments[0].state
        begun = self._ring.begun if opening is not None else ()
        turns = tuple(heard for segment in segments for heard in segment.turns)
        end = End(self._journal.failure, is_live=not self._is_over)
        return Recording(self._header, turns, end, opening=opening, begun=begun, state=state)

    def stop(self) -> None:
        """Record no more."""
        self._detach()

    def dump(self, path: str | Path, tokens: Tokens = Tokens.KEPT) -> None:
        """Write what is kept, now. Raises OSError where that is impossible."""
        write_recording(self.recording, Path(path), tokens)

    def save(self) -> None:
        """The engine is over. Write the whole, if that was wanted, and what led to its death."""
        self._is_over = True
        if self._path is not None:
            self._try_to_dump(self._path, Tokens.KEPT)
        if self._failure_path is not None and self._journal.failure is not None:
            self._try_to_dump(self._failure_path, Tokens.MASKED)

    def _try_to_dump(self, path: Path, tokens: Tokens) -> None:
        """Its answers were given: that it cannot be written is logged."""
        try:
            self.dump(path, tokens)
        except OSError as error:
            logger.error("cannot write the recording %s: %s", path, error.strerror or error)


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
    config: EngineConfig, setup: CoreSetup, facts: DeviceFacts, journal: Journal
) -> Recorder:
    """A recorder of what is about to be built."""
    vocab_size = facts.vocab_size
    header = Header(setup=setup, model=facts.model, device=facts.device, vocab_size=vocab_size)
    failure_path = _path(config.record_failure)
    return Recorder(header, journal, _path(config.record), failure_path=failure_path)


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
