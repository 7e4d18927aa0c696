"""Benchmarks of the whole engine on a model: workloads, built in or from a file."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...actors.config import EngineConfig
from ..runner import progress, running_engine
from .measurement import Measurement
from .process import peak_memory_mb, process_age
from .reporting import Report
from .workload import Shapes, Workload
from .workload_file import check_fit

if TYPE_CHECKING:
    from ...actors.engine import Engine

MakeWorkloads = Callable[[Shapes], Sequence[Workload]]


async def measure_built_in(config: EngineConfig, make: MakeWorkloads, report: Report) -> None:
    """Run workloads that are made for the model once its vocabulary is known."""
    async with running_engine(config) as engine:
        shapes = Shapes(engine.facts.vocab_size, engine.facts.max_model_len)
        for workload in make(shapes):
            report.add(await measure_workload(engine, workload))


async def measure_file(config: EngineConfig, workloads: Sequence[Workload], report: Report) -> None:
    """Run workloads of a file, and say how long the engine took from the start of the process."""
    import_s, began = process_age(), time.perf_counter()
    async with running_engine(config) as engine:
        load_s = time.perf_counter() - began
        facts = engine.facts
        for workload in workloads:
            check_fit(workload, vocab_size=facts.vocab_size, longest=facts.max_model_len)
        await _first_answer(engine, workloads[0])
        report.add_start(import_s=import_s, load_s=load_s, first_answer_s=process_age())
        for workload in workloads:
            report.add(await measure_workload(engine, workload))


async def measure_workload(engine: "Engine", workload: Workload) -> Measurement:
    """A warm-up, then the runs that count."""
    from .measures import measure
    from .traces import run_workload

    rows, outputs = [], []
    with progress(f"{workload.name}, {len(workload.runs) - 1} runs after a warm-up"):
        for number in range(len(workload.runs)):
            run = await run_workload(engine, workload, number)
            rows.append(measure(workload.kind, run))
            outputs.append([tuple(trace.token_ids) for trace in run.traces])
    about = {
        **engine_facts(engine),
        "requests": len(workload.runs[0]),
        "output_tokens": sum(job.output_tokens for job in workload.runs[0]),
        "peak_memory_mb": peak_memory_mb(),
    }
    return Measurement(workload.name, about, rows[1:], warm_up=rows[0], outputs=outputs)


def engine_facts(engine: "Engine") -> dict[str, object]:
    """What is measured, and on what."""
    facts = engine.facts
    return {"model": facts.model, "device": facts.device, "dtype": facts.dtype}


async def _first_answer(engine: "Engine", workload: Workload) -> None:
    from .traces import run_together
    from .workload import Job

    await run_together(engine, [Job(workload.runs[0][0].prompt[:16], 2)])
