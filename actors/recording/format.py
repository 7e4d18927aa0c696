"""What a recording's file holds: a magic word, a header, the messages, and an end.

    MAGIC  [version, header]  begun ...  [OPENING, opening, state]  message ... message  [end]

each but the magic word as a frame of messages/frames.py. The header has all that is needed to build
the same cores again. An opening stands where a recording does not begin with its engine; before it
are the requests that were live then, as Intake passed them on, and beside it the state of the cores
where there is one. A missing end says that the rest was lost.
"""

from dataclasses import dataclass
from typing import Any

from ...messages import DecodeError
from ...messages.codec import pack, value_of
from ..config import GrammarBackend
from ..cores import CoreSetup
from ..journal import ActorFailed
from ..opening import Opening
from .privacy import Tokens
from .state_codec import pack_state, unpack_state

MAGIC = b"stepahead recording\n"
VERSION = 4
OPENING = "opening"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What ran: the cores' setup, and on which model and device, for the reader."""

    setup: CoreSetup
    model: str
    device: str
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()
    grammar_backend: GrammarBackend = "llguidance"
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


def packed_opening(opening: Opening, state: Any | None) -> bytes:
    return pack([OPENING, opening, None if state is None else pack_state(state)])


def unpacked_opening(parts: object) -> tuple[Opening, Any | None] | None:
    """The opening and the captured state, or None where something else stands."""
    if not isinstance(parts, list) or len(parts) != 3 or parts[0] != OPENING:
        return None
    state = None if parts[2] is None else unpack_state(parts[2])
    return value_of(Opening, parts[1]), state
