"""How long a device takes for work that is queued on it, without the time it takes to queue it."""

import statistics
import time
from collections.abc import Callable

import torch

_ROUNDS = 5

Run = Callable[[], object]


def seconds_each(run: Run, device: torch.device, *, repeats: int = 10) -> float:
    """Seconds of one run: the median over rounds of `repeats` runs in a row.

    On a GPU the runs of a round are one graph, so that short ones do not wait for the host. What
    they read should be larger than the caches, or they read those.
    """
    run()
    if device.type != "cuda":
        return statistics.median(_elapsed(run, repeats) for _ in range(_ROUNDS)) / repeats
    graph = _captured(run, device, repeats)
    graph.replay()
    return statistics.median(_elapsed_there(graph.replay, device) for _ in range(_ROUNDS)) / repeats


def _elapsed(run: Run, repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    return time.perf_counter() - began


def _elapsed_there(run: Run, device: torch.device) -> float:
    stream = torch.cuda.current_stream(device)
    begin, end = make_event(), make_event()
    begin.record(stream)
    run()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def make_event() -> torch.cuda.Event:
    """A mark in a stream that knows when it was passed."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own


def _captured(run: Run, device: torch.device, repeats: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        run()  # whatever happens only the first time on a stream
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            run()
    return graph
