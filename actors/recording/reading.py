"""Reading a recording: what is whole up to the first damage; anything else is refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...messages import DecodeError
from ...messages.frames import Frame, FrameReader
from ..journal import Envelope, Heard, Turn
from ..opening import Opening
from .format import MAGIC, End, Header, unpacked_opening


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording, as it was read or as the recorder has it."""

    header: Header
    turns: tuple[Heard, ...]  # in the order in which they began
    end: End | None  # None: the rest was lost
    num_damaged: int = 0  # bytes after the last whole frame
    opening: Opening | None = None  # None: it begins with its engine
    begun: tuple[Heard, ...] = ()  # the requests that were live at the opening, as they arrived
    state: Any | None = None  # of the cores at the opening, as it was captured

    @property
    def is_cut(self) -> bool:
        """Whether there was more to come."""
        return self.end is None or self.end.is_live


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
    return _Reading(Header.unpacked(header), reader).recording()


class _Reading:
    def __init__(self, header: Header, reader: FrameReader) -> None:
        self._header = header
        self._reader = reader
        self._begun: list[Heard] = []
        self._turns: list[Heard] = []
        self._opening: Opening | None = None
        self._state: Any | None = None

    def recording(self) -> Recording:
        end = self._read()
        begun, turns = tuple(self._begun), tuple(self._turns)
        return Recording(
            self._header, turns, end, self._reader.num_left, self._opening, begun, self._state
        )

    def _read(self) -> End | None:
        while (parts := self._reader.next()) is not None:
            end, opening = End.unpacked(parts), unpacked_opening(parts)
            if end is not None:
                return end
            if opening is None:
                self._add(Frame.unpacked(parts))
            else:
                self._opening, self._state = opening
                self._begun, self._turns = self._turns, []
        return None

    def _add(self, frame: Frame) -> None:
        turns = self._turns
        if not turns or turns[-1].turn.number != frame.turn:
            turns.append(Heard(frame.actor, Turn(frame.turn, frame.turn_ns, [])))
        turns[-1].turn.envelopes.append(Envelope(frame.seq, frame.t_ns, frame.message))
