"""What a recording's file holds: a magic word, a header, the messages, and an end.

    MAGIC  [version, header]  message message ... message  [end]

each but the magic word as a frame of messages/frames.py. The header has all that is needed to build
the same cores again; a missing end says that the rest was lost.
"""

from dataclasses import dataclass

from ...messages import DecodeError
from ...messages.codec import pack, value_of
from ..cores import CoreSetup
from ..journal import ActorFailed

MAGIC = b"stepahead recording\n"
VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What ran: the cores' setup, and on which model and device, for the reader."""

    setup: CoreSetup
    model: str
    device: str

    def packed(self) -> bytes:
        return pack([VERSION, self])

    @classmethod
    def unpacked(cls, parts: object) -> "Header":
        """Raises DecodeError, also for what another version wrote."""
        if not isinstance(parts, list) or len(parts) != 2:
            raise DecodeError("the recording has no header")
        version, values = parts
        if version != VERSION:
            raise DecodeError(f"the recording is of version {version!r}; this reads {VERSION}")
        return value_of(cls, values)


@dataclass(frozen=True, slots=True)
class End:
    """The engine was closed, or an actor failed."""

    failure: ActorFailed | None

    def packed(self) -> bytes:
        return pack([self])

    @classmethod
    def unpacked(cls, parts: object) -> "End | None":
        """The end, or None where something else stands."""
        if isinstance(parts, list) and len(parts) == 1:
            return value_of(cls, parts[0])
        return None
