"""The ring: the last turns of an engine, in segments, within so many bytes.

A segment is dropped as a whole. Of what is dropped only the requests stay that are still live, as
Intake passed them on, so that their stories have a beginning.
"""

from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from ...messages import Finished, Generate, Message
from ..journal import Heard, Turn
from ..opening import Opening

Taken: TypeAlias = tuple[str, Turn[Message]]

LEAST_TURNS, MOST_TURNS = 256, 8_192  # in a segment
SEGMENTS = 4  # that fit into the bytes
SAMPLE = 16  # of so many turns one is measured
OBJECT_BYTES = 300  # of a message, its envelope and its turn
ARRAY_BYTES = 112


class Segment:
    """A stretch of turns; the first of an engine has no opening."""

    def __init__(self, opening: Opening | None) -> None:
        self.opening = opening
        self.turns: list[Taken] = []
        self.bytes = 0  # once it is full

    def measure(self) -> int:
        """About how many bytes its turns keep alive; returns those of a turn."""
        sample = self.turns[::SAMPLE]
        each = sum(map(_bytes_of, sample)) // max(len(sample), 1) + 1
        self.bytes = each * len(self.turns)
        return each


class Ring:
    """Segments, the oldest first. `room` says how many turns the last one has room for."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun: dict[int, Heard] = {}  # by serial
        self.segments = deque([Segment(None)])
        self.room = MOST_TURNS

    @property
    def begun(self) -> tuple[Heard, ...]:
        """The requests of which the arrival was dropped, and not the end."""
        return tuple(self._begun.values())

    def open(self, opening: Opening) -> Segment:
        """Begin the next segment, and drop what has no place any more."""
        each = self.segments[-1].measure()
        self.segments.append(Segment(opening))
        self.room = min(max(self._most_bytes // SEGMENTS // each, LEAST_TURNS), MOST_TURNS)
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
        for actor, turn in segment.turns:
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


def _bytes_of(taken: Taken) -> int:
    return sum(OBJECT_BYTES + _held_by(envelope.message) for envelope in taken[1].envelopes)


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
