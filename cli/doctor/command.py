"""The command `doctor`: gathers the findings and says what follows from them."""

import os
from collections.abc import Sequence

import click

from ...actors.config import DEFAULT_MODEL
from ...gpu.processor import read_processor
from ..output import write, write_json
from ..render import table
from . import machine, software
from .finding import Finding

_CAN, _CANNOT = 0, 1


@click.command(short_help="Can an engine run here, on what, and if not, what to do.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--model", default=DEFAULT_MODEL, show_default=True, metavar="NAME", help="The model to run."
)
@click.option(
    "--gpu",
    is_flag=True,
    help="Try the first GPU out instead: its kernels, single steps, how long it waits.",
)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", hidden=True)
def doctor(as_json: bool, model: str, gpu: bool, device: str) -> int:
    """Look at this machine: what is installed, what the processor can do, what `auto` picks, where
    the model is. The exit code is 0 where an engine can run, else 1, and then it says what to do.

    With --gpu kernels are run against their references, and each figure stands beside the best that
    the card can do; the exit code is 1 where a kernel computes wrongly, 2 where there is no GPU.
    """
    if gpu:
        from .gpu import examine_gpu

        return examine_gpu(as_json=as_json, is_trial=device == "cpu")
    findings = examine(model)
    can_run = not any(finding.is_fatal for finding in findings)
    if as_json:
        write_json({"can_run": can_run, **{found.name: found.fields() for found in findings}})
    else:
        write(report(findings, can_run))
    return _CAN if can_run else _CANNOT


def examine(model: str) -> list[Finding]:
    """Everything there is to know."""
    processor = read_processor()
    model_found, path = machine.model(model)
    return [
        software.engine(),
        software.libraries(),
        software.torch(),
        machine.processor(processor),
        *machine.choices(processor),
        machine.gpu(),
        machine.memory(path),
        model_found,
        software.compiler(),
        machine.cache(),
        software.terminal(os.environ),
    ]


def report(findings: Sequence[Finding], can_run: bool) -> str:
    """One screen of text; what is to be done comes last."""
    rows = [(finding.name, finding.text) for finding in findings]
    lines = [table(rows)]
    for finding in findings:
        if finding.remedy is not None:
            lines.append(f"{'!' if finding.is_fatal else '-'} {finding.name}: {finding.remedy}\n")
    lines.append("an engine can run here\n" if can_run else "no engine can run here yet\n")
    return "".join(lines)
