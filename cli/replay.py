"""`engine-cli replay`: a recording once more, without model or device: are the plans the same?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .output import write
from .recordings import open_recording
from .runner import progress
from .stepping import Stepper

if TYPE_CHECKING:
    from ..actors.recording import Recording, Replayed

IDENTICAL, DIFFERENT = 0, 1


@click.command(short_help="Plan a recorded run again, and compare.")
@click.argument("recording", type=click.Path(path_type=Path))
@click.option("--until", type=int, metavar="N", help="End after message N.")
@click.option("--step", is_flag=True, help="Stop at every message; Enter goes on, ? helps.")
@click.option(
    "--model",
    metavar="NAME",
    help="The recorded model, whose tokenizer structured outputs need.",
)
def replay(recording: Path, until: int | None, step: bool, model: str | None) -> int:
    """Drive the same Scheduler and KV pool through RECORDING, which --record wrote.

    Exit code 0: every plan and every other message is the same, bit for bit, and so is the failure,
    if there was one. 1: the first difference is shown. 2: the file cannot be read.
    """
    from ..actors.recording import replay as drive
    from ..actors.recording.structures import grammars_for

    if step:
        read = open_recording(recording)
        grammars = grammars_for(read, model)
        replayed = drive(read, grammars=grammars, until=until, watch=Stepper())
    else:
        with progress(f"replaying {recording}"):
            read = open_recording(recording)
            replayed = drive(read, grammars=grammars_for(read, model), until=until)
    write("\n".join(_lines(read, replayed)) + "\n")
    return IDENTICAL if replayed.difference is None else DIFFERENT


def _lines(recording: "Recording", replayed: "Replayed") -> list[str]:
    counts = (
        f"{replayed.messages:,} messages, {replayed.steps:,} steps, {replayed.turns:,} turns "
        f"({recording.header.model} on {recording.header.device})"
    )
    if replayed.difference is not None:
        return [*replayed.difference.lines(), f"before that the same: {counts}"]
    lines = [f"identical: {counts}"]
    if replayed.failure is not None:
        failure = replayed.failure
        lines.append(f"the engine died, its {failure.actor} failed: {failure}")
    return lines
