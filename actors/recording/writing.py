"""Writing a recording: its bytes, piece by piece."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ...messages.frames import Frame, sealed
from ..journal import Heard
from .format import MAGIC, packed_opening
from .reading import Recording


def write_recording(recording: Recording, path: Path) -> None:
    """Raises OSError where that is impossible."""
    with path.open("wb") as file:
        file.writelines(pieces(recording))


def pieces(recording: Recording) -> Iterator[bytes]:
    """The bytes of the file."""
    yield MAGIC
    yield sealed(recording.header.packed())
    if recording.opening is not None:
        yield from _frames(recording.begun)
        yield sealed(packed_opening(recording.opening))
    yield from _frames(recording.turns)
    if recording.end is not None:
        yield sealed(recording.end.packed())


def _frames(turns: Iterable[Heard]) -> Iterator[bytes]:
    for actor, turn in turns:
        for seq, t_ns, message in turn.envelopes:
            yield sealed(Frame(seq, t_ns, actor, turn.number, turn.t_ns, message).packed())
