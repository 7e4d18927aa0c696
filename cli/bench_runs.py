"""Runs requests on an engine and sums up what was measured."""

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..actors.engine import Engine
from ..gpu.device import DeviceFacts
from ..messages import Result, SamplingParams
from .bench_workload import Job


@dataclass(frozen=True, slots=True)
class Run:
    """One timed pass over some requests."""

    seconds: float
    output_tokens: int
    ttfts: tuple[float, ...]  # seconds until each request's first token

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


async def timed_run(engine: Engine, jobs: Sequence[Job]) -> Run:
    """All jobs at once, greedily, each to its full length."""
    started = time.perf_counter()
    results = await asyncio.gather(*(_generate(engine, job) for job in jobs))
    seconds = time.perf_counter() - started
    return Run(
        seconds=seconds,
        output_tokens=sum(result.usage.completion_tokens for result in results),
        ttfts=tuple(result.timings.ttft_s or 0.0 for result in results),
    )


async def _generate(engine: Engine, job: Job) -> Result:
    greedy = SamplingParams(temperature=0, max_tokens=job.output_tokens, ignore_eos=True)
    return await engine.generate(job.prompt, greedy)


def spread(values: Sequence[float], *, digits: int = 2) -> dict[str, float]:
    """Median and range."""
    measures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in measures.items()}


def summary(runs: Sequence[Run]) -> dict[str, object]:
    """What the runs showed; throughput is sampled tokens over the whole run, prefill included."""
    return {
        "runs": len(runs),
        "output_tokens": runs[0].output_tokens,
        "tokens_per_s": spread([run.tokens_per_s for run in runs]),
        "ttft_ms": spread([ttft * 1000 for run in runs for ttft in run.ttfts]),
        "peak_memory_mb": round(peak_memory() / 1e6),
    }


def described(bench: str, facts: DeviceFacts) -> dict[str, object]:
    """What was measured, and on what."""
    return {
        "bench": bench,
        "model": facts.model,
        "device": facts.device,
        "dtype": facts.dtype,
    }


def peak_memory() -> int:
    """Bytes this process had in memory at most, so far."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
