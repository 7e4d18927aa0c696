"""Reading a recording: what is whole up to the first damage; anything else is refused."""

from dataclasses import dataclass
from pathlib import Path

from ...messages import DecodeError
from ...messages.frames import Frame, FrameReader
from ..journal import Envelope, Heard, Turn
from .format import MAGIC, End, Header


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording as it was read."""

    header: Header
    turns: tuple[Heard, ...]  # in the order in which they began
    end: End | None  # None: the rest was lost
    num_damaged: int  # bytes after the last whole frame


def read_recording(path: Path) -> Recording:
    """Read a recording's file. Raises DecodeError, or OSError where there is none."""
    return recording_of(path.read_bytes())


def recording_of(data: bytes) -> Recording:
    """A recording from its bytes. Raises DecodeError where they are something else."""
    if not data.startswith(MAGIC):
        raise DecodeError("the file is not a recording: it does not begin like one")
    reader = FrameReader(data, len(MAGIC))
    header = reader.next()
    if header is None:
        raise DecodeError("the recording is damaged where it begins; nothing can be read")
    turns, end = _turns(reader)
    return Recording(Header.unpacked(header), tuple(turns), end, reader.num_left)


def _turns(reader: FrameReader) -> tuple[list[Heard], End | None]:
    turns: list[Heard] = []
    while (parts := reader.next()) is not None:
        end = End.unpacked(parts)
        if end is not None:
            return turns, end
        frame = Frame.unpacked(parts)
        if not turns or turns[-1].turn.number != frame.turn:
            turns.append(Heard(frame.actor, Turn(frame.turn, frame.turn_ns, [])))
        turns[-1].turn.envelopes.append(Envelope(frame.seq, frame.t_ns, frame.message))
    return turns, None
