"""Measures: what is counted while a trace runs, in memory that does not grow with its tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...messages import Longs, TokensReady

PERCENTILES = (50, 90, 99)
MAX_HEARD = 65_536  # tokens that are looked at together


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles and the mean, in seconds; None where nothing was measured."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None

    @classmethod
    def of(cls, values: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> "Spread":
        """Of values that were each seen `counts` times; a percentile is a value that was seen."""
        if not len(values):
            return cls(None, None, None, None)
        order = values.argsort(kind="stable")
        counts = np.ones(len(values), dtype=np.int64) if counts is None else counts
        values, counts = values[order], counts[order]
        ranks = counts.cumsum()
        places = [int(np.searchsorted(ranks, ranks[-1] * p / 100)) for p in PERCENTILES]
        p50, p90, p99 = (float(values[place]) for place in places)
        return cls(p50, p90, p99, float((values * counts).sum() / ranks[-1]))


class RequestTimes:
    """When each request arrived, began to answer and ended, by serial.

    What tokens tell is looked at for many steps at once: call `settle` before reading.
    """

    def __init__(self, num_requests: int) -> None:
        self.arrived = np.zeros(num_requests)
        self.first = np.full(num_requests, np.nan)
        self.last = np.full(num_requests, np.nan)
        self.tokens = np.zeros(num_requests, dtype=np.int64)
        self.gaps = GapCounts()
        self.ended = 0
        self.preemptions = 0
        self.cached_tokens = 0
        self._heard: list[tuple[float, Longs]] = []  # time, and whose tokens came then
        self._num_heard = 0

    def add(self, report: TokensReady, now: float) -> None:
        """What a Scheduler turn told."""
        self.ended += len(report.ended)
        self.preemptions += len(report.preempted)
        for admitted in report.admitted:
            self.cached_tokens += admitted.cached_tokens
        self._heard.append((now, report.serials))
        self._num_heard += len(report.serials)
        if self._num_heard >= MAX_HEARD:
            self.settle()

    def settle(self) -> None:
        """Take over what was heard: by serial, and each request's tokens in their order."""
        if not self._num_heard:
            return
        counts = [len(serials) for _, serials in self._heard]
        times = np.array([now for now, _ in self._heard]).repeat(counts)
        serials = np.concatenate([serials for _, serials in self._heard])
        self._heard, self._num_heard = [], 0
        order = serials.argsort(kind="stable")
        serials, times = serials[order], times[order]
        begins = np.concatenate(([True], serials[1:] != serials[:-1]))
        ends = np.concatenate((begins[1:], [True]))
        before = np.concatenate(([0.0], times[:-1]))
        before[begins] = self.last[serials[begins]]
        is_first = np.isnan(before)
        self.first[serials[is_first]] = times[is_first]
        self.gaps.add((times - before)[~is_first])
        self.last[serials[ends]] = times[ends]
        places = begins.nonzero()[0]
        self.tokens[serials[places]] += np.diff(places, append=len(serials))


class GapCounts:
    """How often each time between two tokens of a request was seen, to the microsecond."""

    def __init__(self, room: int = 65_536) -> None:
        self._recent = np.zeros(room)
        self._filled = 0
        self._counts: dict[int, int] = {}

    def add(self, gaps: NDArray[np.float64]) -> None:
        end = self._filled + len(gaps)
        if end > len(self._recent):
            self._settle()
            end = len(gaps)
            if end > len(self._recent):
                self._recent = np.zeros(end)
        self._recent[self._filled : end] = gaps
        self._filled = end

    def spread(self) -> Spread:
        self._settle()
        values = np.fromiter(self._counts.keys(), dtype=np.float64) / 1e6
        return Spread.of(values, np.fromiter(self._counts.values(), dtype=np.int64))

    def _settle(self) -> None:
        microseconds = np.rint(self._recent[: self._filled] * 1e6).astype(np.int64)
        values, counts = np.unique(microseconds, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._counts[value] = self._counts.get(value, 0) + count
        self._filled = 0


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the engine was on average over a span of time."""

    seconds: float  # where the span begins
    running: float  # sequences
    waiting: float  # sequences, those preempted included
    blocks_held: float


class OccupancyMeter:
    """Averages over equal spans: at most `most`, an even number; they double in length instead."""

    def __init__(self, most: int = 240) -> None:
        self._most = most
        self._span = 0.001
        self._now = 0.0
        self._state = (0, 0, 0)
        self._sums: list[list[float]] = [[0.0, 0.0, 0.0]]  # state times seconds, by span
        self.peak_running = self.peak_waiting = self.peak_held = 0

    def advance(self, now: float) -> None:
        """The state has lasted until now."""
        end = len(self._sums) * self._span
        while now >= end:
            self._note(end)
            self._sums.append([0.0, 0.0, 0.0])
            if len(self._sums) > self._most:
                self._halve()
            end = len(self._sums) * self._span
        self._note(now)

    def set(self, running: int, waiting: int, held: int) -> None:
        """The state from now on."""
        self._state = (running, waiting, held)
        if running > self.peak_running:
            self.peak_running = running
        if waiting > self.peak_waiting:
            self.peak_waiting = waiting
        if held > self.peak_held:
            self.peak_held = held

    def spans(self) -> tuple[Occupancy, ...]:
        starts = [i * self._span for i in range(len(self._sums))]
        lasted = [min(self._span, self._now - start) for start in starts]
        return tuple(
            Occupancy(round(start, 9), *(round(value / seconds, 3) for value in sums))
            for start, seconds, sums in zip(starts, lasted, self._sums, strict=True)
            if seconds > 0
        )

    def _note(self, until: float) -> None:
        seconds, sums = until - self._now, self._sums[-1]
        running, waiting, held = self._state
        sums[0] += running * seconds
        sums[1] += waiting * seconds
        sums[2] += held * seconds
        self._now = until

    def _halve(self) -> None:
        """Two spans become one; the last has just begun, and so has nothing beside it."""
        sums = [*self._sums, [0.0, 0.0, 0.0]]
        pairs = zip(sums[0::2], sums[1::2], strict=True)
        self._sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        self._span *= 2
