"""`engine-cli simulate`: a request trace on imagined hardware, with the real Scheduler and pool."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..gpu.cards import CARDS, ModelSize, blocks_beside, step_time
from ..gpu.host import count_host_blocks
from .mistake import Mistake
from .options import LimitOptions, limit_options
from .output import write, write_json
from .runner import nothing_collected, progress

if TYPE_CHECKING:
    from ..actors.config import EngineConfig
    from ..actors.simulation.arrivals import Lengths
    from ..actors.simulation.run import Hardware
    from ..actors.simulation.trace import TraceRequest

MAX_NUM_SEQS = 256  # unless the options say otherwise: what a large card serves


def _token_count(text: str) -> "Lengths":
    """A number of tokens, or a range that they are drawn from."""
    from ..actors.simulation.arrivals import Lengths

    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not N or N-M")
    least = int(found[1])
    return Lengths(least, int(found[2] or least))


@click.command(short_help="Run a request trace on imagined hardware.")
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("--rate", type=float, metavar="R", help="Draw a trace: requests per second.")
@click.option("--duration", type=float, metavar="S", help="Seconds it lasts.  [default: 60]")
@click.option("--burst", type=int, metavar="N", help="Requests that come at once.  [default: 1]")
@click.option(
    "--prompt-tokens", type=_token_count, metavar="N|N-M", help="Per request.  [default: 512]"
)
@click.option(
    "--output-tokens", type=_token_count, metavar="N|N-M", help="Per request.  [default: 128]"
)
@click.option("--seed", type=int, metavar="N", help="Draw another trace.  [default: 0]")
@click.option("--device", default="h100", show_default=True, type=click.Choice(list(CARDS)))
@click.option(
    "--model-size",
    default=8.0,
    show_default=True,
    metavar="B",
    help="Billions of parameters, in 16 bits.",
)
@click.option(
    "--step-times",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured instead: a JSON list of [tokens, kv tokens, seconds].",
)
@click.option(
    "--host-overhead",
    default=0.2,
    show_default=True,
    metavar="MS",
    help="Planning a step and handing it over.",
)
@limit_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--picture", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw the occupancy."
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write every message, for `replay`, `explain` and `trace`.",
)
def simulate(
    trace: Path | None,
    device: str,
    model_size: float,
    step_times: Path | None,
    host_overhead: float,
    limits: LimitOptions,
    as_json: bool,
    picture: Path | None,
    record: Path | None,
    **arrivals: object,
) -> None:
    """Run the Scheduler and the KV pool against a trace, in virtual time and without a model.

    TRACE is CSV with a header, or JSON lines: arrival (seconds), prompt_tokens, output_tokens, and
    where wanted prefix_group with prefix_tokens, and priority. Without it, --rate draws one.
    """
    _check_picture(picture)
    config = replace(limits.config(max_num_seqs=MAX_NUM_SEQS), record=record)
    hardware = _hardware(device, model_size, step_times, host_overhead / 1e3, config)
    requests = _requests(trace, {name: v for name, v in arrivals.items() if v is not None})
    from ..actors.recording.recorder import check_writable
    from ..actors.simulation.run import simulate as run

    check_writable(record)
    with progress(f"simulating {len(requests):,} requests"), nothing_collected():
        result = run(requests, config, hardware)
    if picture is not None:
        from .picture import draw

        _save(picture, draw(result))
    if as_json:
        write_json(result.fields())
    else:
        from .simulation_report import report

        write(report(result))


def _requests(path: Path | None, drawn: dict[str, object]) -> Sequence["TraceRequest"]:
    if path is None:
        if "rate" not in drawn:
            raise click.UsageError("give a TRACE, or --rate to draw one")
        from ..actors.simulation.arrivals import Arrivals

        return Arrivals(**drawn).draw()  # type: ignore[arg-type]  # as click has converted them
    if drawn:
        option = next(iter(drawn)).replace("_", "-")
        raise click.UsageError(f"--{option} draws a trace, and TRACE is one already")
    from ..actors.simulation.trace import read_trace

    return read_trace(path)


def _hardware(
    device: str, billions: float, step_times: Path | None, host_s: float, config: "EngineConfig"
) -> "Hardware":
    from ..actors.simulation.run import Hardware
    from ..gpu.step_points import read_step_points

    card, model = CARDS[device], ModelSize(billions)
    roofline = step_time(card, model)
    block_bytes = int(model.kv_bytes_per_token * config.block_size)
    num_host_blocks = count_host_blocks(config.num_host_blocks, config.swap_memory, block_bytes)
    return Hardware(
        name=card.name if step_times is None else str(step_times),
        step_seconds=roofline if step_times is None else read_step_points(step_times),
        num_blocks=config.num_blocks or blocks_beside(card, model, config.block_size),
        host_s=host_s,
        memory=roofline.host_memory(num_host_blocks, config.block_size),
    )


def _check_picture(path: Path | None) -> None:
    """Before anything runs, for a run may take minutes."""
    if path is None:
        return
    if path.suffix.lower() != ".svg":
        raise Mistake(f"--picture draws SVG, not {path.suffix or path.name}; name a file .svg")
    if not path.parent.is_dir():
        raise Mistake(f"cannot write {path}: there is no folder {path.parent}")


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Mistake(f"cannot write {path}: {error.strerror}") from error
