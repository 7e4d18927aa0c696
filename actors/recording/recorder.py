"""The recorder: always on. It keeps the last messages of an engine, and writes them when asked.

While the engine runs, a message costs an append: messages do not change, so references suffice.
They are encoded when they are written.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...gpu.device import DeviceFacts
from ...messages import ConfigError
from ..config import EngineConfig, GrammarBackend
from ..cores import Cores, CoreSetup
from ..journal import Journal, Row, Turn
from .file import RecordingFile
from .format import End, Header
from .privacy import Tokens
from .reading import Recording
from .ring import LEAST_MESSAGES, PARTS, Kept, Ring, Segment
from .snapshot import Snapshot
from .state import state_of
from .writing import write_recording

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20  # of messages; the snapshots of four segments come to them


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """What a recorder had kept at one moment. To have it takes no time; what is made of it may
    take seconds, and may be made in a thread, since it does not change any more."""

    header: Header
    kept: Kept
    end: End

    @property
    def recording(self) -> Recording:
        """As if it had been read; for who explains or draws, and so needs no state."""
        opening = self.kept.segments[0].opening
        begun = () if opening is None else self.kept.begun
        return Recording(
            self.header, tuple(self.kept.turns), self.end, opening=opening, begun=begun
        )

    def dump(self, path: str | Path, tokens: Tokens = Tokens.KEPT) -> None:
        """Write it, with the state it begins with. Raises OSError where that is impossible."""
        snapshot = self.kept.segments[0].snapshot
        state = None if snapshot is None else state_of(snapshot)
        write_recording(replace(self.recording, state=state), Path(path), tokens)


class Recorder:
    """Records one engine from its first message on.

    It keeps the last messages, in about `MOST_BYTES`. All of them go to a `file` at once, where
    that is wanted. What an actor's failure ends is written to `failure_path`, with masked tokens;
    else what is written holds prompts and answers, unless `dump` is asked for less.
    """

    def __init__(
        self,
        header: Header,
        journal: Journal,
        *,
        file: RecordingFile | None = None,
        failure_path: Path | None = None,
    ) -> None:
        self._file = file
        self._failure_path = failure_path
        self._header = header
        self._journal = journal
        self._cores: Cores | None = None
        self._ring = Ring(MOST_BYTES)
        self._is_over = False
        self._go_on_in(self._ring.segments[-1])
        journal.keep(self)
        self._detach = None if file is None else journal.attach(file.hear)

    def watch(self, cores: Cores) -> None:
        """The cores are there, so that segments can be opened."""
        self._cores = cores

    def hear(self, actor: str, turn: Turn[Any]) -> None:
        """A turn begins. This costs every message, so it does next to nothing."""
        number, turn_ns, envelopes = turn
        if len(self._parts) >= self._enough and actor == "scheduler":
            self._look(turn_ns)
        for seq, t_ns, message in envelopes:
            self.keep((actor, number, turn_ns, seq, t_ns, message))

    def _look(self, turn_ns: int) -> None:
        """Before a turn of the Scheduler, when no question is open, a segment may begin."""
        self._enough = len(self._parts) + LEAST_MESSAGES * PARTS
        cores = self._cores
        if cores is not None and self._ring.is_full():
            self._go_on_in(self._ring.open(cores.opening(turn_ns), Snapshot(cores)))

    def _go_on_in(self, segment: Segment) -> None:
        self._parts = segment.parts
        self._enough = LEAST_MESSAGES * PARTS  # parts, after which it is measured
        self.keep: Callable[[Row], object] = segment.parts.extend

    @property
    def num_rotations(self) -> int:
        """How often a segment was opened, with a snapshot of the cores."""
        return self._ring.num_opened

    @property
    def is_dropping(self) -> bool:
        """Whether the first messages are gone, so that each that comes takes another's place."""
        return self._ring.segments[0].opening is not None

    @property
    def flight(self) -> Flight:
        """What is kept now."""
        end = End(self._journal.failure, is_live=not self._is_over)
        return Flight(self._header, self._ring.kept, end)

    def stop(self) -> None:
        """Record no more."""
        self._journal.keep(None)
        if self._detach is not None:
            self._detach()
            self._detach = None

    def dump(self, path: str | Path, tokens: Tokens = Tokens.KEPT) -> None:
        """Write what is kept, now: a full ring takes seconds, in which an event loop stands still
        unless `flight.dump` runs in a thread. Raises OSError where that is impossible."""
        self.flight.dump(path, tokens)

    def save(self) -> None:
        """The engine is over: what it was recorded into is whole, and what led to its death is
        written."""
        self._is_over = True
        if self._file is not None:
            self._file.close(End(self._journal.failure))
        if self._failure_path is None or self._journal.failure is None:
            return
        try:
            self.dump(self._failure_path, Tokens.MASKED)
        except OSError as error:  # its answers were given
            why = error.strerror or error
            logger.error("cannot write the recording %s: %s", self._failure_path, why)


def check_writable(record: str | Path | None) -> None:
    """Find out before a model is loaded; a file that is there stays as it is until then. Raises
    ConfigError."""
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


def header_of(
    setup: CoreSetup, facts: DeviceFacts, grammar_backend: GrammarBackend = "llguidance"
) -> Header:
    """What a recording of cores that are built so begins with."""
    return Header(
        setup=setup,
        model=facts.model,
        device=facts.device,
        vocab_size=facts.vocab_size,
        eos_token_ids=tuple(sorted(facts.eos_token_ids)),
        grammar_backend=grammar_backend,
    )


def open_recorder(
    config: EngineConfig, setup: CoreSetup, facts: DeviceFacts, journal: Journal
) -> Recorder:
    """A recorder of what is about to be built. Raises ConfigError where the file that it is to
    record into cannot be written."""
    header = header_of(setup, facts, config.grammar_backend)
    file = None if config.record is None else RecordingFile(Path(config.record), header)
    failure_path = None if config.record_failure is None else Path(config.record_failure)
    return Recorder(header, journal, file=file, failure_path=failure_path)
