"""The command `bench`: which benchmark, on what, and where its results go."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import click

from ..options import EngineOptions, engine_options
from ..runner import run
from .host import HOST_BENCHES
from .options import BenchOptions, LoadOptions, bench_options, load_options

if TYPE_CHECKING:
    from ...actors.config import EngineConfig
    from .reporting import Report
    from .workload import Shapes, Workload

What = Literal[
    "single",
    "batch",
    "prefix",
    "interference",
    "serve-load",
    "structured",
    "startup",
    "accuracy",
    "text",
    "control-plane",
    "request",
    "overlap",
    "recorder",
    "gpu",
]


@click.command(short_help="Measure this machine: speed, serving, start, planning.")
@click.argument("what", required=False, type=click.Choice(get_args(What)))
@bench_options
@load_options
@engine_options
def bench(
    what: What | None, options: BenchOptions, load: LoadOptions, engine: EngineOptions
) -> int:
    """Measure with a warm-up and several runs; median and range are shown.

    \b
    single         one stream: time to the first token, tokens per second after it
    batch          many requests at once
    prefix         many requests that begin alike
    interference   how long streams stand still while a long prompt arrives
    serve-load     requests that arrive by chance: percentiles, how many were good
    structured     rows that follow a structure against free ones, in batches of 16
    startup        from the start of a process to its first answer
    accuracy       perplexity of each choice of weights, agreement with float32
    text           CPU time of a token's text, with the model's tokenizer

    Without WHAT: single and batch. These need no model:

    \b
    control-plane  CPU time of planning a step
    request        CPU time of building a request, what a very long one does to the event loop
    overlap        how long a device waits for the host between two steps
    recorder       what the flight recorder costs, by message and in throughput

    And this one needs a GPU and no files, since its weights are random:

    \b
    gpu            whole workloads, each beside the best that the card could do
    """
    from .reporting import Report

    _check_together(what, options)
    config = engine.config()
    report = Report(
        as_json=options.as_json,
        out=options.out,
        compare=options.compare,
        args={"what": what, "runs": options.runs, "only": options.only, "engine": engine.words()},
    )
    if what in HOST_BENCHES:
        for measured in HOST_BENCHES[what](options.runs):
            report.add(measured)
    elif what == "gpu":
        from .gpu import measure_gpu

        return measure_gpu(options.budget, report, is_trial=engine.device == "cpu")
    elif what == "startup":
        from .startup import measure_startup

        report.add(measure_startup(engine, options.runs))
    elif what == "text":
        from .text import measure_text

        report.add(measure_text(config.model, options.runs))
    else:
        _measure_engine(what, options, load, config, report)
    return 0


def _measure_engine(
    what: What | None,
    options: BenchOptions,
    load: LoadOptions,
    config: "EngineConfig",
    report: "Report",
) -> None:
    """What runs an engine on a model."""
    if what == "accuracy":
        from .accuracy import measure_accuracy

        run(measure_accuracy(config, report))
    elif what == "serve-load":
        from .serve_load import measure_serving

        run(measure_serving(config, load, options.runs, report))
    elif what == "structured":
        from .structured import measure_structured

        run(measure_structured(config, options.runs, report))
    elif options.against is not None:
        from .transformers import compare

        run(compare(config, options.runs, report))
    elif options.workloads is not None:
        from .on_model import measure_file
        from .workload_file import read_workloads

        workloads = read_workloads(options.workloads, options.wanted, options.runs)
        run(measure_file(config, workloads, report))
    else:
        from .on_model import measure_built_in

        run(measure_built_in(config, partial(_built_in, what, options), report))


def _check_together(what: What | None, options: BenchOptions) -> None:
    if options.against is not None and what not in (None, "single"):
        raise click.UsageError(f"--against compares the single stream, not {what}")
    if options.workloads is not None and (what or options.against) is not None:
        other = what or f"--against {options.against}"
        raise click.UsageError(f"--workloads says what to measure; leave out {other}")
    if options.only is not None and options.workloads is None:
        raise click.UsageError("--only chooses from a file; give --workloads, too")


def _built_in(what: What | None, options: BenchOptions, shapes: "Shapes") -> "Sequence[Workload]":
    runs = options.runs + 1  # a warm-up comes first
    make = {
        "single": lambda: shapes.single(runs),
        "batch": lambda: shapes.batch(runs, options.requests),
        "prefix": lambda: shapes.prefix(runs, options.requests),
        "interference": lambda: shapes.interference(runs),
    }
    return [make[name]() for name in ([what] if what is not None else ["single", "batch"])]
