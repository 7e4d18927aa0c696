"""The recorder: keeps every message of an engine, and writes them when the engine is over.

While the engine runs, a turn costs an append: messages do not change, so references suffice. They
are kept in memory to the end.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from ...gpu.device import DeviceFacts
from ...messages import ConfigError, Message
from ...messages.frames import Frame, sealed
from ..cores import CoreSetup
from ..journal import Journal, Turn
from .format import MAGIC, End, Header

logger = logging.getLogger(__name__)


class Recorder:
    """Records one engine from its first message on; a replay needs them all.

    The file holds prompts and answers.
    """

    def __init__(self, path: Path, header: Header, journal: Journal) -> None:
        self._path = path
        self._header = header
        self._journal = journal
        self._turns: list[tuple[str, Turn[Message]]] = []
        journal.attach(lambda actor, turn: self._turns.append((actor, turn)))

    def save(self) -> None:
        """Write the file. The engine is over and its answers were given: a failure is logged."""
        try:
            with self._path.open("wb") as file:
                file.writelines(self.pieces())
        except OSError as error:
            logger.error("cannot write the recording %s: %s", self._path, error.strerror or error)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the file."""
        yield MAGIC
        yield sealed(self._header.packed())
        for actor, turn in self._turns:
            for seq, t_ns, message in turn.envelopes:
                yield sealed(Frame(seq, t_ns, actor, turn.number, turn.t_ns, message).packed())
        yield sealed(End(self._journal.failure).packed())


def check_writable(path: Path | None) -> None:
    """Find out at once, since the file is written at the end; a file that is there stays as it is
    until then. Raises ConfigError."""
    if path is None:
        return
    try:
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"cannot record to {path}: {error.strerror or error}") from error


def open_recorder(
    path: Path | None, setup: CoreSetup, facts: DeviceFacts, journal: Journal
) -> Recorder | None:
    """A recorder of what is about to be built, where a recording is wanted."""
    if path is None:
        return None
    return Recorder(path, Header(setup=setup, model=facts.model, device=facts.device), journal)
