"""What time does to sequences: deadlines end them, waiting raises them."""

import heapq
from collections.abc import Iterator

from ...messages import Generate
from .roster import Roster


class Deadlines:
    """By when requests must be over, or must have started (rule 25)."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._heap: list[tuple[int, int]] = []  # (time, serial), lazily purged

    def add(self, request: Generate) -> None:
        for time_ns in (request.deadline_ns, request.queue_deadline_ns):
            if time_ns is not None:
                _push(self._heap, (time_ns, request.serial), self._roster)

    def take_expired(self, now_ns: int) -> Iterator[int]:
        """The serials whose deadline has passed, or that have waited longer than they would."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, serial = heapq.heappop(self._heap)
            sequence = self._roster.get(serial)
            if sequence is not None and sequence.is_expired(now_ns):
                yield serial

    @property
    def next_ns(self) -> int | None:
        while self._heap and self._heap[0][1] not in self._roster:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class Ageing:
    """Waiting long enough raises a sequence by one class (rule 13); never without a time."""

    def __init__(self, ageing_ns: int | None, roster: Roster) -> None:
        self._ageing_ns = ageing_ns
        self._roster = roster
        self._heap: list[tuple[int, int]] = []  # (when to gain a class, serial)

    def add(self, serial: int, now_ns: int) -> None:
        if self._ageing_ns is not None:
            _push(self._heap, (now_ns + self._ageing_ns, serial), self._roster)

    def pass_time(self, now_ns: int) -> None:
        while self._heap and self._heap[0][0] <= now_ns:
            _, serial = heapq.heappop(self._heap)
            sequence = self._roster.get(serial)
            if sequence is None:
                continue
            if not self._roster.is_running(sequence):
                self._roster.raise_class(sequence)
            self.add(serial, now_ns)


def _push(heap: list[tuple[int, int]], entry: tuple[int, int], roster: Roster) -> None:
    """Who ended leaves its entries behind; once most are such they go, however far their time."""
    heapq.heappush(heap, entry)
    if len(heap) > 4 * len(roster) + 64:
        heap[:] = [(time_ns, serial) for time_ns, serial in heap if serial in roster]
        heapq.heapify(heap)
