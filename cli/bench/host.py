"""Benchmarks of the host's side alone: what it does per step and per request, without a model."""

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..runner import event_loops, progress, run
from .measurement import Measurement
from .recorded_pairs import INTO_FILE, NOT_RECORDED, RecordedPairs

SIZES = (8, 64, 256, 1024, 4096)
CONTROL_STEPS = 256
BUILT, BUILT_TOKENS, LONG_TOKENS = 1_000, 512, 100_000
RUNNING, OVERLAP_STEPS = 256, 400
STEP_MS = (5, 1)
SNAPSHOT_RUNNING = (8, 64, 256, 1_024)
RECORDED, RECORDED_STEP_S, RECORDED_STEPS = 1_024, 0.010, 1_200

_ASKED = (
    "running",
    "blocks",
    "step_ms",
    "steps_in_flight",
    "prompt_tokens",
    "requests",
    "cached_tokens",
    "messages",
)
"""What the benchmarks say of themselves beside what they measured."""


def control_plane(runs: int) -> Iterator[Measurement]:
    from ...actors.control_plane_bench import measure

    for size in SIZES:
        with progress(f"{size} running sequences"):
            lines = [measure(running=size, steps=CONTROL_STEPS) for _ in range(runs)]
        yield _measurement(f"control-plane {size}", lines)


def request(runs: int) -> Iterator[Measurement]:
    from ...actors.request_bench import build, lag

    _settle_memory()
    with progress(f"{BUILT:,} requests of {BUILT_TOKENS} tokens"):
        lines = [run(build(BUILT_TOKENS, BUILT)) for _ in range(runs)]
    yield _measurement("request", lines)
    for name, factory in event_loops():
        with progress(f"prompts of {LONG_TOKENS:,} tokens on {name}"):
            lines = [run(lag(LONG_TOKENS), factory) for _ in range(runs)]
        yield _measurement(f"long requests, {name}", lines)


def overlap(runs: int) -> Iterator[Measurement]:
    from ...actors.overlap_bench import measure

    _settle_memory()
    for name, factory in event_loops():
        for step_ms in STEP_MS:
            for steps_in_flight in (2, 1):
                case = f"steps of {step_ms} ms, {steps_in_flight} in flight, {name}"
                with progress(case):
                    lines = [
                        run(
                            measure(
                                RUNNING,
                                step_ms / 1e3,
                                steps_in_flight=steps_in_flight,
                                steps=OVERLAP_STEPS,
                            ),
                            factory,
                        )
                        for _ in range(runs)
                    ]
                yield _measurement(f"overlap, {case}", lines)


def recorder(runs: int) -> Iterator[Measurement]:
    """The recorder's cost by message, by snapshot and by step, then in throughput beside a device
    of 10 ms steps."""
    from ...actors.recorder_bench import measure, measure_snapshots, measure_steps

    with progress("messages"):
        lines = [measure() for _ in range(runs)]
    yield _measurement("recorder, by message", lines)
    for running in SNAPSHOT_RUNNING:
        with progress(f"snapshots, {running:,} running"):
            lines = [measure_snapshots(running) for _ in range(runs)]
        yield _measurement("recorder, snapshot", lines)
    with progress(f"steps, {RECORDED:,} running"):
        lines = [measure_steps(RECORDED, RECORDED_STEP_S, RECORDED_STEPS) for _ in range(runs)]
    yield _measurement("recorder, by step", lines)
    name, factory = event_loops()[0]
    pairs = RecordedPairs()
    for place in range(runs):
        for way in pairs.order(place):
            with progress(f"{RECORDED:,} running, {way}"):
                pairs.add(way, run(_recorded(way), factory))
    for way, lines in pairs.lines.items():
        yield _measurement(f"recorder, {way}, {name}", lines)
    yield _measurement(f"recorder, run by run, {name}", pairs.costs())


async def _recorded(way: str) -> dict[str, Any]:
    """A device of 10 ms steps with an engine that is recorded in one of the ways."""
    from ...actors.overlap_bench import measure

    with TemporaryDirectory() as folder:
        return await measure(
            RECORDED,
            RECORDED_STEP_S,
            steps_in_flight=2,
            steps=RECORDED_STEPS,
            is_recorded=way != NOT_RECORDED,
            record=Path(folder, "recording") if way == INTO_FILE else None,
        )


def _measurement(
    bench: str, lines: Collection[Mapping[str, Any]], asked: Collection[str] = _ASKED
) -> Measurement:
    """Each of these benchmarks warms up for itself."""
    about = {name: value for line in lines for name, value in line.items() if name in asked}
    rows = [{n: value for n, value in line.items() if n not in asked} for line in lines]
    return Measurement(bench, about, rows)


def _settle_memory() -> None:
    """What was there before is not walked through again by the collector, as in a server that
    calls `gc.freeze` once it has started."""
    gc.collect()
    gc.freeze()


HOST_BENCHES: Mapping[str | None, Callable[[int], Iterator[Measurement]]] = {
    "control-plane": control_plane,
    "request": request,
    "overlap": overlap,
    "recorder": recorder,
}
