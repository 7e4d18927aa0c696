"""The ring: the last messages of an engine, in segments, within so many bytes.

A segment is dropped as a whole. Of what is dropped only the requests stay that are still live, as
Intake passed them on, so that their stories have a beginning.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from ...messages import Finished, Generate
from ..journal import Envelope, Heard, Turn
from ..opening import Opening
from .snapshot import Snapshot

LEAST_MESSAGES, MOST_MESSAGES = 256, 16_384  # in a segment
SEGMENTS = 4  # that fit into the bytes
SAMPLE = 16  # of so many messages one is measured
MESSAGE_BYTES = 300  # with its numbers and times
ARRAY_BYTES = 112
PARTS = 6  # of a message in a segment's list


class Segment:
    """A stretch of the log; the first of an engine has no opening.

    Its messages lie flat in one list, each after actor, turn, the turn's time, number and time: a
    tuple that is kept is a thing that the collector of garbage has to look at again and again.
    """

    def __init__(self, opening: Opening | None, snapshot: Snapshot | None = None) -> None:
        self.opening = opening
        self.snapshot = snapshot  # of the cores, where one could be taken
        self.parts: list[Any] = []
        self.bytes = 0  # once it is full

    def turns(self, num_parts: int | None = None) -> Iterator[Heard]:
        """What was taken at once, one after another; only the first parts, if so many are given."""
        heard: Heard | None = None
        columns = (self.parts[part:num_parts:PARTS] for part in range(PARTS))
        for actor, number, turn_ns, seq, t_ns, message in zip(*columns, strict=True):
            if heard is None or heard.turn.number != number:
                if heard is not None:
                    yield heard
                heard = Heard(actor, Turn(number, turn_ns, []))
            heard.turn.envelopes.append(Envelope(seq, t_ns, message))
        if heard is not None:
            yield heard

    def measure(self) -> int:
        """About how many bytes its messages keep alive; returns those of each."""
        messages = self.parts[PARTS - 1 :: PARTS]
        sample = messages[::SAMPLE]
        each = MESSAGE_BYTES + sum(map(_held_by, sample)) // max(len(sample), 1)
        self.bytes = each * len(messages)
        return each


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
    """Segments, the oldest first. `room` says how many messages the last one has room for."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun: dict[int, Heard] = {}  # by serial
        self.segments = deque([Segment(None)])
        self.room = MOST_MESSAGES

    @property
    def kept(self) -> Kept:
        """What is there now."""
        segments = tuple(self.segments)
        return Kept(segments, len(segments[-1].parts), tuple(self._begun.values()))

    def open(self, opening: Opening, snapshot: Snapshot | None) -> Segment:
        """Begin the next segment, and drop what has no place any more."""
        each = self.segments[-1].measure()
        self.segments.append(Segment(opening, snapshot))
        self.room = min(max(self._most_bytes // SEGMENTS // each, LEAST_MESSAGES), MOST_MESSAGES)
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
        for actor, turn in segment.turns():
            if actor not in ("detokenizer", "log"):
                continue
            for envelope in turn.envelopes:
                match envelope.message:
                    case Generate(serial=serial):
                        self._begun[serial] = Heard(actor, turn._replace(envelopes=[envelope]))
                    case Finished(serial=serial):
                        self._begun.pop(serial, None)
                    case _:
                        pass


def _held_by(message: Any) -> int:
    """The bytes of the arrays that a message holds, directly or in its parts."""
    total = 0
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, np.ndarray):
            total += ARRAY_BYTES + value.nbytes
        elif is_dataclass(value):
            total += _held_by(value)
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            total += len(value) * _held_by(value[0])
    return total
