"""Benchmarks of the host's side alone: what it does per step and per request, without a model."""

import gc
from collections.abc import Callable, Iterator, Mapping

from .runner import event_loops, progress, run

Line = Mapping[str, object]

SIZES = (8, 64, 256, 1024)
CONTROL_STEPS = 256
BUILT, BUILT_TOKENS, LONG_TOKENS = 1_000, 512, 100_000
RUNNING, OVERLAP_STEPS = 256, 400
STEP_MS = (5, 1)


def control_plane() -> Iterator[Line]:
    from ..actors.control_plane_bench import measure

    for size in SIZES:
        with progress(f"{size} running sequences"):
            line = measure(running=size, steps=CONTROL_STEPS)
        yield line


def request() -> Iterator[Line]:
    from ..actors.request_bench import build, lag

    _settle_memory()
    with progress(f"{BUILT:,} requests of {BUILT_TOKENS} tokens"):
        line = run(build(BUILT_TOKENS, BUILT))
    yield {"bench": "request", **line}
    for name, factory in event_loops():
        with progress(f"prompts of {LONG_TOKENS:,} tokens on {name}"):
            line = run(lag(LONG_TOKENS), factory)
        yield {"bench": "long requests", "event_loop": name, **line}


def overlap() -> Iterator[Line]:
    from ..actors.overlap_bench import measure

    _settle_memory()
    for name, factory in event_loops():
        for step_ms in STEP_MS:
            for steps_in_flight in (2, 1):
                with progress(f"steps of {step_ms} ms, {steps_in_flight} in flight, on {name}"):
                    line = run(
                        measure(
                            RUNNING,
                            step_ms / 1e3,
                            steps_in_flight=steps_in_flight,
                            steps=OVERLAP_STEPS,
                        ),
                        factory,
                    )
                yield {"bench": "overlap", "event_loop": name, **line}


def _settle_memory() -> None:
    """What was there before is not walked through again by the collector, as in a server that
    calls `gc.freeze` once it has started."""
    gc.collect()
    gc.freeze()


HOST_BENCHES: Mapping[str | None, Callable[[], Iterator[Line]]] = {
    "control-plane": control_plane,
    "request": request,
    "overlap": overlap,
}
