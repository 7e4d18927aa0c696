"""A story: what happened to one request, as plain values. Times are nanoseconds of the engine."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from ...messages import PrefixAccount


class Phase(StrEnum):
    """What a request's time goes into: it is in one of these at any moment."""

    FORGOTTEN = "forgotten"  # before the log begins
    QUEUE = "queue"  # not scheduled yet
    PREFILL = "prefill"  # from the first chunk of its prompt to its first token
    DECODE = "decode"
    PREEMPTED = "preempted"  # it gave way, or a step failed, and it waits again
    RECOMPUTE = "recompute"  # from when it was resumed to its next token


class Cause(StrEnum):
    """What a request waits for."""

    TURN = "turn"  # the Scheduler, which has not heard of it yet
    STEP = "step"  # a step in flight: the next one can only be planned after it
    GRAMMAR = "grammar"  # its grammar is being compiled
    PAUSE = "pause"
    WEIGHTS = "weights"  # others are to be loaded, or are being loaded
    SEAT = "seat"  # as many run as may run at once
    BUDGET = "budget"  # the step's token positions went to others
    BLOCKS = "blocks"
    PREFIX = "prefix"  # somebody computes what its prompt begins with, too
    OTHERS = "others"  # somebody before it, who has not got what he needs
    DRAIN = "drain"  # a step in flight that still mentions it
    HOST = "host"  # planned and not on the device; the host was late
    DEVICE = "device"  # a step ran


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase and how long it lasted."""

    phase: Phase
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch of time, and what it went into."""

    cause: Cause
    begin_ns: int
    end_ns: int
    detail: str = ""  # for people


@dataclass(frozen=True, slots=True)
class Arrived:
    t_ns: int
    prompt_tokens: int
    priority: int


@dataclass(frozen=True, slots=True)
class Started:
    """It was scheduled for the first time, after these waits."""

    t_ns: int
    cached_tokens: int
    account: PrefixAccount | None
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A step computed part of its prompt, or of what it had lost."""

    t_ns: int
    step: int
    start: int
    length: int
    step_tokens: int  # of all rows
    mates: tuple[str, ...]  # the other requests in the step
    is_again: bool  # these positions were computed before
    failed: str | None  # why the step gave nothing
    began_ns: int  # when the device could begin with the step
    done_ns: int | None  # when its result was there; None: not yet


@dataclass(frozen=True, slots=True)
class FirstToken:
    t_ns: int


@dataclass(frozen=True, slots=True)
class GaveWay:
    """It was preempted."""

    t_ns: int
    by: tuple[str, ...]  # who needed what it had
    why: str
    kept_tokens: int  # positions whose KV it keeps


@dataclass(frozen=True, slots=True)
class WentOn:
    """It was resumed, after these waits."""

    t_ns: int
    start: int  # position from which it goes on
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Stall:
    """Longer than usual between two tokens."""

    t_ns: int  # of the later one
    begin_ns: int
    token: int  # its number, from 0
    causes: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Waited:
    """It ended, or the log does, while it waited."""

    t_ns: int
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Over:
    t_ns: int
    finish_reason: str
    stop_reason: int | str | None


Event: TypeAlias = Arrived | Started | Chunk | FirstToken | GaveWay | WentOn | Stall | Waited | Over


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Where a request's tokens come from and where they went.

    cached + computed + found_later = prompt + completion - 1 + beyond once it has a token, unless
    the log has forgotten its beginning: the last token's KV is never needed.
    """

    prompt: int
    cached: int  # positions of the prompt whose KV was found
    computed: int  # positions computed for the first time
    recomputed: int  # and again
    completion: int  # tokens that the caller got
    dropped: int  # sampled after a stop string had matched
    beyond: int  # positions computed, or planned, past the end; of a live request those in flight
    found_later: int  # more of what it had lost, or had not reached, was found when it went on


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to one request, up to now if it still runs."""

    request_id: str
    index: int  # which of its answers it is about
    answers: int  # that it wants
    serial: int
    is_over: bool
    phases: tuple[PhaseSpan, ...]  # without a gap, from the arrival to the end or to now
    events: tuple[Event, ...]  # in the order of time
    tokens: TokenAccount
    gap_p50_ns: int | None
    gap_max_ns: int | None

    @property
    def name(self) -> str:
        return answer_name(self.request_id, self.index, self.answers)

    @property
    def begin_ns(self) -> int:
        return self.phases[0].begin_ns

    @property
    def end_ns(self) -> int:
        return self.phases[-1].end_ns

    def seconds_in(self, phase: Phase) -> float:
        spans = [span for span in self.phases if span.phase == phase]
        return sum(span.end_ns - span.begin_ns for span in spans) / 1e9

    def fields(self) -> dict[str, Any]:
        """For JSON, with times in nanoseconds and the type of each event as its `event`."""
        said = asdict(self)
        said["events"] = [dict(_named(event)) for event in self.events]
        said["seconds"] = {str(phase): self.seconds_in(phase) for phase in Phase}
        return said


def answer_name(request_id: str, index: int, answers: int) -> str:
    """What a request's caller calls it, and which answer is meant where it wants several."""
    return f"{request_id}[{index}]" if answers > 1 else request_id


def _named(event: Event) -> Iterator[tuple[str, Any]]:
    yield "event", type(event).__name__
    yield from asdict(event).items()
