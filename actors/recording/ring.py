"""The ring: the last messages of an engine, in segments, within so many bytes.

A segment is dropped as a whole. Of what is dropped only the requests stay that are still live, as
Intake passed them on, so that their stories have a beginning.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...messages import Finished, Generate
from ..journal import Envelope, Heard, Turn
from ..opening import Opening
from .sizes import held_by
from .snapshot import Snapshot

LEAST_MESSAGES, MOST_MESSAGES = 256, 16_384  # in a segment; after so few it is measured
SEGMENTS = 4  # that fit into the bytes
SAMPLE = 11  # of so many messages one is measured; prime, as steps say the same ones in turn
MESSAGE_BYTES = 300  # with its numbers and times
PARTS = 6  # of a message in a segment's list


class Segment:
    """A stretch of the log; the first of an engine has no opening.

    Its messages lie flat in one list, each after actor, turn, the turn's time, number and time: a
    tuple that is kept is a thing that the collector of garbage has to look at again and again.
    """

    def __init__(self, opening: Opening | None, snapshot: Snapshot | None = None) -> None:
        self.opening = opening
        self.snapshot = snapshot  # of the cores, where it has an opening
        self.parts: list[Any] = []
        self.bytes = 0  # that its messages keep alive, about, as far as they were measured
        self._held = 0  # by its messages
        self._next_sample = 0  # the number of a message, in this segment

    def turns(self, num_parts: int | None = None) -> Iterator[Heard]:
        """What was taken at once, one after another; only the first parts, if so many are given."""
        heard: Heard | None = None
        for actor, number, turn_ns, seq, t_ns, message in self.rows(num_parts):
            if heard is None or heard.turn.number != number:
                if heard is not None:
                    yield heard
                heard = Heard(actor, Turn(number, turn_ns, []))
            heard.turn.envelopes.append(Envelope(seq, t_ns, message))
        if heard is not None:
            yield heard

    def rows(self, num_parts: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Messages, each after actor, turn, the turn's time, number and time."""
        columns = (self.parts[part:num_parts:PARTS] for part in range(PARTS))
        return zip(*columns, strict=True)

    @property
    def num_messages(self) -> int:
        return len(self.parts) // PARTS

    def measure(self) -> None:
        """Find out about the messages that came since the last time. The sample goes on where it
        was: what comes again and again, like a step that crosses block edges, is met as often as
        it should be."""
        sampled = self.parts[self._next_sample * PARTS + PARTS - 1 :: SAMPLE * PARTS]
        self._held += SAMPLE * sum(map(held_by, sampled))
        self._next_sample += SAMPLE * len(sampled)
        self.bytes = self._held + self.num_messages * MESSAGE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What a ring holds at one moment, while it goes on."""

    segments: tuple[Segment, ...]
    num_parts: int  # of the last one, which grows
    begun: tuple[Heard, ...]  # the requests of which the arrival was dropped, and not the end

    @property
    def turns(self) -> Iterator[Heard]:
        *full, last = self.segments
        for segment in full:
            yield from segment.turns()
        yield from last.turns(self.num_parts)


class Ring:
    """Segments, the oldest first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun: dict[int, Heard] = {}  # by serial
        self.segments = deque([Segment(None)])
        self.num_opened = 0  # segments since then

    def is_full(self) -> bool:
        """Whether it is time for another segment."""
        last = self.segments[-1]
        last.measure()
        is_large = last.bytes >= self._most_bytes // SEGMENTS
        return is_large or last.num_messages >= MOST_MESSAGES

    @property
    def kept(self) -> Kept:
        """What is there now."""
        segments = tuple(self.segments)
        return Kept(segments, len(segments[-1].parts), tuple(self._begun.values()))

    def open(self, opening: Opening, snapshot: Snapshot) -> Segment:
        """Begin the next segment, and drop what has no place any more."""
        self.segments.append(Segment(opening, snapshot))
        self.num_opened += 1
        while (
            len(self.segments) > 2
            and self._num_bytes > self._most_bytes * (SEGMENTS - 1) // SEGMENTS
        ):
            self._forget(self.segments.popleft())
        return self.segments[-1]

    @property
    def _num_bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def _forget(self, segment: Segment) -> None:
        """Every message passes here once: most are only asked what they are."""
        parts = segment.parts
        for place, message in enumerate(parts[PARTS - 1 :: PARTS]):
            kind = type(message)
            if kind is Generate:
                actor, number, turn_ns, seq, t_ns, _ = parts[place * PARTS : (place + 1) * PARTS]
                if actor == "detokenizer":
                    turn = Turn(number, turn_ns, [Envelope(seq, t_ns, message)])
                    self._begun[message.serial] = Heard(actor, turn)
            elif kind is Finished:
                self._begun.pop(message.serial, None)
