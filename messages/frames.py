"""Frames: messages one after another in a file, each with its place in the run.

A frame is its payload's length and CRC-32 (little-endian, four bytes each) and the payload, which
for a message is msgpack: `[seq, t_ns, actor, turn, turn's t_ns, type, fields]`. Bytes from anywhere
may be read: whatever is damaged is noticed.
"""

import struct
import zlib
from dataclasses import dataclass

from . import Message
from .codec import MAX_FRAME, message_of, pack, parts_of, unpack
from .errors import DecodeError

HEAD = struct.Struct("<II")  # length and CRC-32 of the payload


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A message, who took it, and in which turn; times are on the engine's clock."""

    seq: int
    t_ns: int  # when it was posted
    actor: str
    turn: int
    turn_ns: int  # when the turn began: the only "now" its actor sees
    message: Message

    def packed(self) -> bytes:
        """The payload."""
        name, values = parts_of(self.message)
        return pack([self.seq, self.t_ns, self.actor, self.turn, self.turn_ns, name, values])

    @classmethod
    def unpacked(cls, parts: object) -> "Frame":
        """From what `unpack` made of a payload. Raises DecodeError."""
        if not isinstance(parts, list) or len(parts) != 7:
            raise DecodeError("the frame is not a message with its number, times, actor and turn")
        seq, t_ns, actor, turn, turn_ns, name, values = parts
        for value, kind in ((actor, str), *((n, int) for n in (seq, t_ns, turn, turn_ns))):
            if type(value) is not kind:
                raise DecodeError(f"a frame says {value!r} where a {kind.__name__} belongs")
        return cls(seq, t_ns, actor, turn, turn_ns, message_of(name, values))


def sealed(payload: bytes) -> bytes:
    """A payload as it lies in a file."""
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def unsealed(head: bytes, payload: bytes) -> bytes:
    """A payload whose head came before it. Raises DecodeError where it is damaged."""
    length, checksum = HEAD.unpack(head)
    if len(payload) != length or zlib.crc32(payload) != checksum:
        raise DecodeError("the frame is damaged: its checksum is another")
    return payload


class FrameReader:
    """Takes payloads off a file's bytes, as far as they are whole."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data = data
        self.place = start  # bytes read so far

    @property
    def num_left(self) -> int:
        """Bytes after the last whole frame."""
        return len(self._data) - self.place

    def next(self) -> object | None:
        """The next payload, unpacked; None at the end, or where the bytes are damaged.

        Raises DecodeError where an undamaged payload is not msgpack.
        """
        start = self.place + HEAD.size
        if start > len(self._data):
            return None
        length, checksum = HEAD.unpack_from(self._data, self.place)
        payload = self._data[start : start + length]
        if length > MAX_FRAME or len(payload) < length or zlib.crc32(payload) != checksum:
            return None
        self.place = start + length
        unpacked: object = unpack(payload)
        return unpacked
