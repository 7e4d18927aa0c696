"""The journal: one counter that numbers every message of an engine, and one clock.

Sinks (logs, metrics, timelines) and the recorder attach here, so that actors know nothing of them;
while nobody listens a message costs its number and its time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ..messages import Message

M = TypeVar("M")


class Envelope(NamedTuple, Generic[M]):
    """A message with its number and the time it was posted."""

    seq: int  # unique and increasing over the whole engine
    t_ns: int  # on the engine's clock
    message: M


class Turn(NamedTuple, Generic[M]):
    """What an actor took from its mailbox at once; its time is the only "now" its core sees."""

    number: int
    t_ns: int
    envelopes: list[Envelope[M]]


@dataclass(frozen=True, slots=True)
class ActorFailed:
    """How an actor ended its engine."""

    actor: str
    kind: str  # the exception's type
    text: str

    @classmethod
    def of(cls, actor: str, error: Exception) -> "ActorFailed":
        return cls(actor, type(error).__name__, str(error))

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


Sink: TypeAlias = Callable[[str, Turn[Message]], None]  # (actor, its turn)


Row: TypeAlias = tuple[str, int, int, int, int, Any]
"""A message as it is kept, after actor, turn, the turn's time, its number and its time."""


class Keeper(Protocol):
    """Keeps every message. For one that is noted it is given a row and no turn, since building
    that for nobody else would be most of what recording costs."""

    keep: Callable[[Row], object]

    def hear(self, actor: str, turn: Turn[Any]) -> None:
        """A turn begins with messages that were posted."""


class Heard(NamedTuple):
    """A turn with the actor that took it: what a log consists of."""

    actor: str
    turn: Turn[Message]


class Journal:
    """Numbers messages and turns. `clock` gives nanoseconds and never goes back."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._seq = 0
        self._turn = 0
        self._sinks: list[Sink] = []
        self._keeper: Keeper | None = None
        self.failure: ActorFailed | None = None  # the first one

    @property
    def last_seq(self) -> int:
        """The number of the last message that was posted."""
        return self._seq

    def stamp(self, message: M) -> Envelope[M]:
        """Number a message that is being posted."""
        self._seq += 1
        return Envelope(self._seq, self.clock(), message)

    def begin_turn(self, actor: str, envelopes: list[Envelope[M]]) -> Turn[M]:
        """An actor takes these messages as one turn."""
        self._turn += 1
        turn = Turn(self._turn, self.clock(), envelopes)
        if self._keeper is not None:
            self._keeper.hear(actor, turn)
        if self._sinks:
            self.announce(actor, turn)
        return turn

    def note(self, actor: str, message: Message) -> None:
        """Number a message that `actor` takes at once, as a turn of its own: a question that is
        asked and answered within another actor's turn."""
        self._seq = seq = self._seq + 1
        self._turn = number = self._turn + 1
        keeper = self._keeper
        if keeper is None and not self._sinks:
            return
        now_ns = self.clock()
        if keeper is not None:
            keeper.keep((actor, number, now_ns, seq, now_ns, message))
        if self._sinks:
            self.announce(actor, Turn(number, now_ns, [Envelope(seq, now_ns, message)]))

    def announce(self, actor: str, turn: Turn[Any]) -> None:
        """Tell every sink of a turn."""
        for sink in self._sinks:
            sink(actor, turn)

    def fail(self, actor: str, error: Exception) -> None:
        """An actor failed, and the engine with it; what other actors say of it comes later."""
        if self.failure is None:
            self.failure = ActorFailed.of(actor, error)

    def attach(self, sink: Sink) -> Callable[[], None]:
        """Call `sink` for every turn from now on, as it begins; returns its detachment."""
        self._sinks.append(sink)
        return lambda: self._sinks.remove(sink)

    def keep(self, keeper: Keeper | None) -> None:
        """Let `keeper` have every message from now on, before any sink; None: nobody."""
        self._keeper = keeper
