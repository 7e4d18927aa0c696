"""A clock without an event loop: it jumps from one event to the next."""

import heapq
from collections.abc import Callable


class Event:
    """Something that will be called; it can be cancelled until then."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class EventClock:
    """Events in the order of their time, and of `call_at` where the times are equal."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._number = 0
        self._events: list[tuple[float, int, Event]] = []

    def call_at(self, time: float, call: Callable[[], None]) -> Event:
        event = Event(call)
        self._number += 1
        heapq.heappush(self._events, (max(time, self.now), self._number, event))
        return event

    def run(self) -> None:
        """Until no event is left."""
        while self._events:
            time, _, event = heapq.heappop(self._events)
            if event.call is not None:
                self.now = time
                event.call()
