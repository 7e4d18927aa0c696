"""How long a device was at work and how long it had nothing to do, by its own clock."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .timing import make_event


class BusyMeter:
    """Marks the beginning and the end of every piece of work while it is on.

    What is counted as idle is the time between two pieces. That a piece may itself wait for the
    host, whose kernels are launched one by one, is not seen.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._is_on = False
        self._lock = threading.Lock()  # work is queued on one thread, and asked about on another
        self._times: list[tuple[float, float]] = []
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def around(self) -> Iterator[None]:
        """Entered for every piece of work, with its stream current."""
        if not self._is_on:
            yield
        elif self._is_gpu:
            begin, end = make_event(), make_event()
            begin.record()
            yield
            end.record()
            with self._lock:
                self._events.append((begin, end))
        else:
            began = time.perf_counter()
            yield
            with self._lock:
                self._times.append((began, time.perf_counter()))

    def start(self) -> None:
        """Forget what was, and count from here."""
        with self._lock:
            self._times, self._events = [], []
        self._is_on = True

    def stop(self) -> float:
        """The share of time, from the first piece's beginning to the last one's end, in which
        nothing was done; the device must have nothing queued."""
        self._is_on = False
        with self._lock:
            if self._events:
                first = self._events[0][0]
                self._events[-1][1].synchronize()
                self._times = [
                    (first.elapsed_time(begin) / 1e3, first.elapsed_time(end) / 1e3)
                    for begin, end in self._events
                ]
            return idle_share(self._times)


def idle_share(pieces: list[tuple[float, float]]) -> float:
    """Of pieces of work one after the other, each with its beginning and end. Pure."""
    if not pieces:
        return 0.0
    wall = pieces[-1][1] - pieces[0][0]
    busy = sum(end - begin for begin, end in pieces)
    return max(0.0, 1 - busy / wall) if wall > 0 else 0.0
