"""`engine-cli bench`: how fast the engine is here, measured and not promised."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, get_args

import click

from ..actors.config import EngineConfig
from .bench_host import HOST_BENCHES
from .options import EngineOptions, engine_options
from .output import write, write_json
from .render import table
from .runner import progress, run, running_engine

if TYPE_CHECKING:
    from ..actors.engine import Engine

What = Literal["single", "batch", "control-plane", "request", "overlap"]
Line = Mapping[str, object]


@click.command(short_help="Measure tokens per second on this machine.")
@click.argument("what", required=False, type=click.Choice(get_args(What)))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per measurement.")
@click.option("--runs", default=3, type=click.IntRange(1), show_default=True, metavar="N")
@click.option("--requests", default=64, type=click.IntRange(1), show_default=True, metavar="N")
@click.option(
    "--against",
    type=click.Choice(["transformers"]),
    help="Run its `generate` on the single stream in turn with the engine, in the same dtype.",
)
@engine_options
def bench(
    what: What | None,
    as_json: bool,
    runs: int,
    requests: int,
    against: str | None,
    engine: EngineOptions,
) -> None:
    """Measure a single stream and a batch on the model, with a warm-up and several runs; median
    and range are shown. The others need no model:

    \b
    control-plane  CPU time of planning a step
    request        CPU time of building a request; how late a very long one makes the event loop
    overlap        how long a device waits for the host between two steps
    """
    show = write_json if as_json else _show
    config = engine.config()
    if against is not None and what not in (None, "single"):
        raise click.UsageError(f"--against compares the single stream, not {what}")
    if what in HOST_BENCHES:
        for line in HOST_BENCHES[what]():
            show(line)
    elif against is not None:
        from .bench_transformers import compare

        run(compare(config, runs, show))
    else:
        run(_measure(config, what, runs, requests, show))


async def _measure(
    config: EngineConfig,
    what: What | None,
    runs: int,
    requests: int,
    show: Callable[[Line], None],
) -> None:
    async with running_engine(config) as engine:
        if what != "batch":
            show(await _single(engine, runs))
        if what != "single":
            show(await _batch(engine, runs, requests))


async def _single(engine: "Engine", runs: int) -> Line:
    from .bench_runs import described, summary, timed_run
    from .bench_workload import single_job

    facts = engine.facts
    jobs = [single_job(facts.vocab_size, n, longest=facts.max_model_len) for n in range(runs + 1)]
    with progress(f"single stream, {runs} runs after a warm-up"):
        timed = [await timed_run(engine, [job]) for job in jobs]
    return {**described("single", facts), "requests": 1, **summary(timed[1:])}


async def _batch(engine: "Engine", runs: int, requests: int) -> Line:
    from .bench_runs import described, summary, timed_run
    from .bench_workload import batch_jobs

    vocab, longest = engine.facts.vocab_size, engine.facts.max_model_len
    with progress(f"batch of {requests}, {runs} runs after a warm-up"):
        timed = [
            await timed_run(engine, batch_jobs(requests, vocab, n, longest=longest))
            for n in range(runs + 1)
        ]
    return {**described("batch", engine.facts), "requests": requests, **summary(timed[1:])}


def _show(line: Line) -> None:
    write(table([(name, _readable(value)) for name, value in line.items()]) + "\n")


def _readable(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{value['median']} ({value['min']} to {value['max']})"
    return str(value)
