"""Serving under load: requests arrive by chance, whether or not the engine keeps up.

An open loop: who waits for answers before asking again hides how an overloaded engine behaves.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from ...actors.config import EngineConfig
from ...actors.simulation.arrivals import Arrivals
from ...messages import EngineOverloaded
from ..runner import progress, running_engine
from .measurement import Measurement, Row
from .on_model import engine_facts
from .options import LoadOptions
from .process import peak_memory_mb
from .reporting import Report
from .workload import Job, Shapes

if TYPE_CHECKING:
    from ...actors.engine import Engine
    from .traces import Trace

_WARM_UP_S = 5.0  # at most
_PERCENTILES = (50, 90, 99)


async def measure_serving(
    config: EngineConfig, load: LoadOptions, runs: int, report: Report
) -> None:
    """A warm-up, then runs with other arrivals and other prompts each."""
    async with running_engine(config) as engine:
        shapes = Shapes(engine.facts.vocab_size, engine.facts.max_model_len)
        with progress(f"{load.rate:g} requests/s for {load.duration:g} s, {runs} runs"):
            await _serve(engine, load, shapes, 0, min(load.duration, _WARM_UP_S))
            rows = [
                await _serve(engine, load, shapes, run + 1, load.duration) for run in range(runs)
            ]
        about = {**engine_facts(engine), **asdict(load), "peak_memory_mb": peak_memory_mb()}
        report.add(Measurement("serve-load", about, rows))


async def _serve(
    engine: "Engine", load: LoadOptions, shapes: Shapes, run: int, duration: float
) -> Row:
    from .traces import Trace

    arrivals = Arrivals(rate=load.rate, duration=duration, seed=run).draw()
    jobs = shapes.mixed(len(arrivals), run)
    traces = [Trace() for _ in jobs]
    due = [arrival.arrival for arrival in arrivals]
    started = time.perf_counter()
    refused = await asyncio.gather(
        *(
            _arrive(engine, job, trace, started + at)
            for job, trace, at in zip(jobs, traces, due, strict=True)
        )
    )
    seconds = time.perf_counter() - started
    served = [trace for trace, was_refused in zip(traces, refused, strict=True) if not was_refused]
    late = max(trace.sent - started - at for trace, at in zip(traces, due, strict=True))
    return {
        "requests": len(jobs),
        "refused": sum(refused),
        **of_served(served, len(jobs), load, seconds),
        "sent_late_max_ms": late * 1e3,
    }


async def _arrive(engine: "Engine", job: Job, trace: "Trace", at: float) -> bool:
    """Send a request when it is due; whether the engine refused it for now."""
    from .traces import follow

    await asyncio.sleep(max(at - time.perf_counter(), 0))
    try:
        await follow(engine, job, trace)
    except EngineOverloaded:
        return True
    return False


def of_served(traces: Sequence["Trace"], asked: int, load: LoadOptions, seconds: float) -> Row:
    """Throughput, good answers and times of what was served of `asked` requests. Pure."""
    if not traces:
        return {"requests_per_s": 0.0, "goodput_per_s": 0.0, "good_percent": 0.0}
    firsts = np.array([trace.at[0] - trace.sent for trace in traces]) * 1e3
    gaps = [np.diff(trace.at) * 1e3 for trace in traces]
    means = np.array([gap.mean() if len(gap) else 0.0 for gap in gaps])
    good = int(((firsts <= load.good_ttft) & (means <= load.good_itl)).sum())
    tokens = sum(len(trace.token_ids) for trace in traces)
    return {
        "requests_per_s": len(traces) / seconds,
        "out_tok_s": tokens / seconds,
        "goodput_per_s": good / seconds,
        "good_percent": 100 * good / asked,
        **_percentiles("ttft", firsts),
        **_percentiles("itl", np.concatenate(gaps)),
    }


def _percentiles(name: str, values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Row:
    if not len(values):
        return {}
    return {f"{name}_p{p}_ms": float(np.percentile(values, p)) for p in _PERCENTILES}
