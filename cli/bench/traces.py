"""Runs requests on an engine and notes when each token reached the caller."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...actors.engine import Engine
from ...messages import SamplingParams
from ..mistake import Mistake
from .workload import LEAST_STREAM_OUTPUT, Job, Workload

_HOLD = 40  # tokens that each stream has before the long prompt is sent, or a quarter of its own


@dataclass(slots=True)
class Trace:
    """One request: when it was sent and when its tokens came, in seconds of one clock."""

    sent: float = 0.0
    at: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over some requests."""

    seconds: float
    traces: Sequence[Trace]

    @property
    def output_tokens(self) -> int:
        return sum(len(trace.token_ids) for trace in self.traces)


async def run_workload(engine: Engine, workload: Workload, number: int) -> Run:
    """One run of a workload: each request greedily, and to its full length."""
    jobs = workload.runs[number]
    if workload.kind == "interference":
        return await _run_held(engine, jobs)
    return await run_together(engine, jobs)


async def run_together(engine: Engine, jobs: Sequence[Job]) -> Run:
    """All at once."""
    traces = [Trace() for _ in jobs]
    started = time.perf_counter()
    pairs = zip(jobs, traces, strict=True)
    await asyncio.gather(*(follow(engine, job, trace) for job, trace in pairs))
    return Run(time.perf_counter() - started, traces)


async def _run_held(engine: Engine, jobs: Sequence[Job]) -> Run:
    """All but the last, which is sent once every other one has been decoding for a while."""
    traces = [Trace() for _ in jobs]
    *streams, long = traces
    shortest = min(job.output_tokens for job in jobs[:-1])
    if shortest < LEAST_STREAM_OUTPUT:
        raise Mistake(
            f"the streams have {shortest} output tokens, too few to decode while a long prompt "
            f"arrives; {LEAST_STREAM_OUTPUT} is the least, so give the engine more context"
        )
    hold, decoding = min(_HOLD, shortest // 4), asyncio.Event()

    def came() -> None:
        if all(len(trace.token_ids) >= hold for trace in streams):
            decoding.set()

    async def follow_late() -> None:
        await decoding.wait()
        await follow(engine, jobs[-1], long)

    started = time.perf_counter()
    following = [
        follow(engine, job, trace, came) for job, trace in zip(jobs[:-1], streams, strict=True)
    ]
    await asyncio.gather(*following, follow_late())
    return Run(time.perf_counter() - started, traces)


async def follow(
    engine: Engine, job: Job, trace: Trace, came: Callable[[], None] | None = None
) -> None:
    """Send a request and note its tokens as they come; `came` is told each time."""
    greedy = SamplingParams(temperature=0, max_tokens=job.output_tokens, ignore_eos=True)
    trace.sent = time.perf_counter()
    async for delta in engine.stream(job.prompt, greedy):
        trace.at.extend([time.perf_counter()] * len(delta.token_ids))
        trace.token_ids.extend(delta.token_ids)
        if came is not None:
            came()
