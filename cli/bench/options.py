"""The options of `bench`, gathered into one value each."""

from dataclasses import dataclass
from pathlib import Path

import click

from ..options import Command, gather

_RUNS, _REQUESTS = 3, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How to measure, and what to do with the results."""

    as_json: bool
    runs: int
    requests: int
    workloads: Path | None
    only: str | None
    out: Path | None
    compare: Path | None
    against: str | None
    budget: float  # seconds

    @property
    def wanted(self) -> list[str] | None:
        """The names of --only; None where all are wanted."""
        return None if self.only is None else [name.strip() for name in self.only.split(",")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How much `serve-load` asks for, and what counts as a good answer."""

    rate: float  # requests per second, on average
    duration: float  # seconds in which they arrive
    good_ttft: float  # ms in which a good answer's first token comes
    good_itl: float  # ms between its tokens, on average


_FILE = click.Path(path_type=Path, dir_okay=False)
_ABOVE_0 = click.FloatRange(0, min_open=True)

_BENCH = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per measurement."),
    click.option("--runs", default=_RUNS, type=click.IntRange(1), show_default=True, metavar="N"),
    click.option(
        "--requests",
        default=_REQUESTS,
        type=click.IntRange(1),
        show_default=True,
        metavar="N",
        help="Requests of batch and prefix.",
    ),
    click.option(
        "--workloads",
        type=_FILE,
        metavar="FILE",
        help="Run the workloads W1 to W4 of a file of token ids.",
    ),
    click.option("--only", metavar="NAMES", help="Some of the file's workloads, as in W1,W3."),
    click.option("--out", type=_FILE, metavar="FILE", help="Write the results."),
    click.option(
        "--compare", type=_FILE, metavar="FILE", help="Show ratios to what such a file holds."
    ),
    click.option(
        "--against",
        type=click.Choice(["transformers"]),
        help="Run its `generate` on the single stream in turn with the engine, in the same "
        "dtype if it has that.",
    ),
    click.option(
        "--budget",
        default=480.0,
        type=_ABOVE_0,
        show_default=True,
        metavar="S",
        help="gpu: seconds for all runs; what does not fit is left out.",
    ),
)

_LOAD = (
    click.option(
        "--rate",
        default=1.0,
        type=_ABOVE_0,
        show_default=True,
        metavar="R",
        help="serve-load: requests per second, on average.",
    ),
    click.option(
        "--duration",
        default=20.0,
        type=_ABOVE_0,
        show_default=True,
        metavar="S",
        help="serve-load: seconds in which they arrive.",
    ),
    click.option(
        "--good-ttft",
        default=1000.0,
        type=_ABOVE_0,
        show_default=True,
        metavar="MS",
        help="serve-load: when a good answer begins.",
    ),
    click.option(
        "--good-itl",
        default=100.0,
        type=_ABOVE_0,
        show_default=True,
        metavar="MS",
        help="serve-load: the mean time between its tokens.",
    ),
)


def bench_options(command: Command) -> Command:
    """Give a command the options of measuring, as its argument `options`."""
    return gather(command, "options", BenchOptions, _BENCH)


def load_options(command: Command) -> Command:
    """Give a command the options of serving under load, as its argument `load`."""
    return gather(command, "load", LoadOptions, _LOAD)
