"""What a recording's file holds: a magic word, a header, the messages, and an end.

    MAGIC  [version, header]  begun ...  [OPENING, opening]  message message ... message  [end]

each but the magic word as a frame of messages/frames.py. The header has all that is needed to build
the same cores again. An opening stands where a recording does not begin with its engine; before it
are the requests that were live then, as Intake passed them on. A missing end says that the rest was
lost.
"""

from dataclasses import dataclass

from ...messages import DecodeError
from ...messages.codec import pack, value_of
from ..cores import CoreSetup
from ..journal import ActorFailed
from ..opening import Opening
from .privacy import Tokens

MAGIC = b"stepahead recording\n"
VERSION = 2
OPENING = "opening"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What ran: the cores' setup, and on which model and device, for the reader."""

    setup: CoreSetup
    model: str
    device: str
    vocab_size: int = 0
    tokens: Tokens = Tokens.KEPT

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
    """The engine was closed, an actor failed, or it goes on and no more was recorded."""

    failure: ActorFailed | None
    is_live: bool = False

    def packed(self) -> bytes:
        return pack([self])

    @classmethod
    def unpacked(cls, parts: object) -> "End | None":
        """The end, or None where something else stands."""
        if isinstance(parts, list) and len(parts) == 1:
            return value_of(cls, parts[0])
        return None


def packed_opening(opening: Opening) -> bytes:
    return pack([OPENING, opening])


def unpacked_opening(parts: object) -> Opening | None:
    """The opening, or None where something else stands."""
    if isinstance(parts, list) and len(parts) == 2 and parts[0] == OPENING:
        return value_of(Opening, parts[1])
    return None
