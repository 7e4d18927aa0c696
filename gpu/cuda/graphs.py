"""Decode graphs: steps of one token a row, captured once at a few sizes and replayed at any.

A graph computes a fixed number of rows; those that a step has not are padding, whose slot is -1.
What is captured is a function of that number, over memory that stays in its place.

Pure but for what is captured with: which sizes there are, in which order, how long it may take, and
which of them serves a step.
"""

import gc
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import torch

logger = logging.getLogger(__name__)

RunRows: TypeAlias = Callable[[int], None]
"""Queue the work of a step of so many rows, without asking the device anything."""

Replay: TypeAlias = Callable[[], None]

CAPTURE_S = 30.0  # seconds that capturing may take
GRAPH_BYTES = 24 * 2**20  # what a graph takes beside the memory that all share: an estimate

_FREE_PADDING = 8  # rows that are computed for nothing at no cost that shows


class Capture(Protocol):
    """What graphs are made with: CUDA, or a stand-in that notes what it is asked."""

    def warm_up(self, run: Replay) -> None:
        """Run once and wait for it, so that whatever happens only the first time has happened."""
        ...

    def capture(self, run: Replay) -> Replay:
        """Record what `run` queues; the result queues it again."""
        ...

    def bytes_free(self) -> int:
        """Memory of the device that nobody has."""
        ...


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What capturing came to."""

    sizes: tuple[int, ...] = ()  # captured, rising
    left_out: tuple[int, ...] = ()  # for which there was no time; steps of theirs run eagerly
    seconds: float = 0.0
    num_bytes: int = 0
    fault: str | None = None  # why capturing ended early, where it failed

    def beside(self, others: "GraphFacts") -> "GraphFacts":
        """With what graphs of another kind took in time and memory."""
        return replace(
            self,
            seconds=self.seconds + others.seconds,
            num_bytes=self.num_bytes + others.num_bytes,
            fault=self.fault or others.fault,
        )


def graph_sizes(max_rows: int) -> list[int]:
    """Numbers of rows to capture for steps of up to `max_rows`, rising: 1, 2, 4, then every eighth
    to 256, every sixteenth to 512 and powers of two above; the last holds all rows."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    while sizes[-1] < max_rows:
        sizes.append(2 * sizes[-1])
    return [size for size in sizes if size < max_rows] + [sizes[bisect_left(sizes, max_rows)]]


def capture_order(sizes: Sequence[int]) -> list[int]:
    """The order in which sizes are captured: the largest first, so that all others find room in its
    memory; then those that are at most half of the one before, so that any step is served should
    the time run out; then the rest, each group from the largest down."""
    coarse = coarse_sizes(sizes)
    return coarse + [size for size in sorted(sizes, reverse=True) if size not in coarse]


def coarse_sizes(sizes: Sequence[int]) -> list[int]:
    """The largest, then those that are at most half of the one before: any step is served."""
    falling = sorted(sizes, reverse=True)
    coarse = falling[:1]
    for size in falling:
        if size <= coarse[-1] // 2:
            coarse.append(size)
    return coarse


class DecodeGraphs:
    """The graphs of one device, and which of them serves a step."""

    def __init__(self, run: RunRows, capture: Capture, sizes: Sequence[int]) -> None:
        """`sizes` are the numbers of rows to capture."""
        self._run = run
        self._capture = capture
        self._wanted = sizes
        self._replays: dict[int, Replay] = {}
        self._sizes: list[int] = []  # captured, rising
        self.facts = GraphFacts()

    def capture_all(
        self,
        *,
        budget_s: float = CAPTURE_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> GraphFacts:
        """Capture until there is no time for one more, or one fails: then the steps of what is left
        run eagerly. Whatever runs meanwhile must leave the device alone."""
        began, free = clock(), self._capture.bytes_free()
        order = capture_order(self._wanted)
        fault = None
        with _no_collection():
            for size in order:
                if clock() - began >= budget_s:
                    break
                try:
                    self._capture_one(size)
                except Exception as error:  # of memory, of a kernel, of what cannot be captured
                    said, _, _ = str(error).partition("\n")  # CUDA's goes on with advice
                    fault = f"{size} rows: {said}"
                    logger.warning("decode graphs cannot be captured any further: %s", fault)
                    break
        self._sizes = sorted(self._replays)
        self.facts = GraphFacts(
            sizes=tuple(self._sizes),
            left_out=tuple(sorted(set(order) - set(self._sizes))),
            seconds=clock() - began,
            num_bytes=max(free - self._capture.bytes_free(), 0),
            fault=fault,
        )
        logger.info(
            "captured %d decode graphs in %.1f s, %.0f MB; %d left out",
            len(self._sizes),
            self.facts.seconds,
            self.facts.num_bytes / 1e6,
            len(self.facts.left_out),
        )
        return self.facts

    def size_for(self, rows: int) -> int | None:
        """Rows of the graph that serves a step of `rows`; None where it runs eagerly: no graph
        holds it, or the least that does would compute twice as many for nothing."""
        place = bisect_left(self._sizes, rows)
        if place == len(self._sizes):
            return None
        size = self._sizes[place]
        return size if size <= max(2 * rows, _FREE_PADDING) else None

    def has(self, size: int) -> bool:
        """Whether there is a graph of just that size."""
        return size in self._replays

    def replay(self, size: int) -> None:
        """Queue the graph of a size that there is."""
        self._replays[size]()

    def clear(self) -> None:
        """Let go of all graphs and their memory."""
        self._replays.clear()
        self._sizes = []

    def _capture_one(self, size: int) -> None:
        def run() -> None:
            self._run(size)

        self._capture.warm_up(run)
        self._replays[size] = self._capture.capture(run)


class CudaCapture:
    """CUDA graphs of the stream that is current, all of which share a memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Replay) -> None:
        run()
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
        done.record()
        done.synchronize()

    def capture(self, run: Replay) -> Replay:
        try:
            return self._captured(run, self._pool)
        except BaseException:
            self._give_up()
            raise

    def _captured(self, run: Replay, pool: Any = None) -> Replay:
        graph = torch.cuda.CUDAGraph()
        # Threads that have nothing to do with this may use the device meanwhile.
        capturing = torch.cuda.graph(
            graph,
            pool=pool,
            stream=torch.cuda.current_stream(self._device),
            capture_error_mode="thread_local",
        )
        # The first capture makes what all graphs of the process keep of the random numbers, and
        # what is made in inference mode could not be written by those of others outside of it.
        with torch.inference_mode(False), capturing, torch.inference_mode():
            run()
        replay: Replay = graph.replay
        return replay

    def _give_up(self) -> None:
        """Tell torch of a capture that CUDA did not take. For torch it is under way until then: its
        allocator gives no memory back, and nobody in the process gets a random number."""

        def work() -> None:
            torch.zeros(1, device=self._device)

        device = self._device.index
        # CUDA took it, and torch knows; or the GPU is broken, or this torch has no such calls.
        with suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(device, self._pool)
            torch._C._cuda_releasePool(device, self._pool)
            self._captured(work)  # the next that is taken puts the random numbers right

    def bytes_free(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return free


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing is collected meanwhile: freeing device memory would break a capture."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
