"""What a request is while it moves through the engine, and what ends it."""

from dataclasses import dataclass
from enum import StrEnum

from .answers import ChatFormat
from .arrays import Ints, Longs
from .blocks import PrefixAccount
from .logprobs import Logprobs
from .params import SamplingParams


class FinishReason(StrEnum):
    """Why an output ended."""

    STOP = "stop"  # EOS, a stop id or a stop string
    LENGTH = "length"  # max_tokens or the context
    ABORT = "abort"
    TIMEOUT = "timeout"  # a deadline or a queue timeout
    ERROR = "error"


@dataclass(frozen=True, slots=True, eq=False)
class Generate:
    """A validated request: Intake → Scheduler and Detokenizer."""

    serial: int  # the engine's own id, never reused
    request_id: str  # the caller's id, unique among live requests
    prompt: Ints  # token ids
    params: SamplingParams
    seed: int  # the seed that is used, also when the caller gave none
    max_tokens: int  # params.max_tokens, capped by the context
    stop_token_ids: tuple[int, ...]  # every id that ends the output: EOS (unless ignored) and stops
    priority: int  # lower runs first
    deadline_ns: int | None  # on the engine's clock
    queue_deadline_ns: int | None  # by when it must have been scheduled for the first time
    cache_salt: bytes  # only requests with the same salt share cached blocks
    adapter: bytes = b""  # the adapter's key: KV depends on it; reserved, no device has any yet
    grammar: str | None = None  # what the output must follow; it waits until that is compiled
    chat: ChatFormat | None = None  # of a chat: how the answer's parts are told apart
    index: int = 0  # which of the answers it is that its request wants
    bad_words: tuple[tuple[int, ...], ...] = ()  # the ids of params.bad_words, in every form


@dataclass(frozen=True, slots=True)
class Abort:
    """Somebody gave up on a request; an unknown or finished serial is a no-op."""

    serial: int


@dataclass(frozen=True, slots=True)
class GrammarReady:
    """A request's grammar was compiled, or cannot be: → Scheduler."""

    serial: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StopMatched:
    """The Detokenizer found a stop string and closed the stream: Detokenizer → Scheduler."""

    serial: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Plan no further steps; those in flight complete: API → Scheduler."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Plan again."""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The earliest deadline may have passed; the envelope's time says which have."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence was scheduled for the first time."""

    serial: int
    cached_tokens: int  # prompt tokens found in the prefix cache
    time_ns: int
    account: PrefixAccount | None = None  # None without prefix caching


@dataclass(frozen=True, slots=True)
class Preempted:
    """A sequence gave blocks away and waits again."""

    serial: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The Scheduler is done with a sequence."""

    serial: int
    reason: FinishReason
    stop_token_id: int | None = None  # the last sampled id, where it is an EOS or stop id
    error: str | None = None
    is_steered: bool = False  # its grammar was brought to an end because the tokens ran out


@dataclass(frozen=True, slots=True, eq=False)
class TokensReady:
    """What one Scheduler turn has to tell: Scheduler → Detokenizer.

    `serials` and `token_ids` are parallel; a serial may occur more than once, in token order.
    """

    serials: Longs
    token_ids: Ints
    admitted: tuple[Admitted, ...] = ()
    preempted: tuple[Preempted, ...] = ()
    ended: tuple[Ended, ...] = ()
    logprobs: Logprobs | None = None  # of requests that asked; owners are serials
