"""`engine-cli explain`: what happened to one request of a recording, and why it took so long."""

from pathlib import Path

import click

from .fitting import shown
from .output import write_answer, write_json
from .recordings import open_recording


@click.command(short_help="Tell what happened to one request of a recording.")
@click.argument("recording", type=click.Path(path_type=Path))
@click.argument("request")
@click.option(
    "--stall",
    type=float,
    metavar="MS",
    help="Explain every gap between two tokens that is longer.  [default: three usual ones]",
)
@click.option(
    "--index",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Which of its answers, where it wants several.  [default: 0, the first]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(recording: Path, request: str, stall: float | None, index: int, as_json: bool) -> None:
    """Tell the story of REQUEST, an id or a serial, from RECORDING, which --record wrote.

    What it waited for, how much of its prompt was found in the cache, each step that computed its
    prompt and beside whom, who it gave way to, and why tokens came late.
    """
    from ..actors.recording import explain_request
    from ..actors.story import tell

    stall_s = None if stall is None else stall / 1e3
    story = explain_request(open_recording(recording), request, index=index, stall_s=stall_s)
    if as_json:
        write_json(story.fields())
    else:
        write_answer(shown(tell(story)))
