"""`engine-cli trace`: a recording as a timeline, for Perfetto or as a picture."""

import json
from pathlib import Path

import click

from .mistake import Mistake
from .output import write
from .recordings import open_recording
from .runner import progress

FORMATS = (".json", ".svg")


@click.command(short_help="Draw the timeline of a recording, for Perfetto or as SVG.")
@click.argument("recording", type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="trace.json for ui.perfetto.dev, or trace.svg.",
)
def trace(recording: Path, out: Path) -> None:
    """Draw what RECORDING, which --record wrote, says of actors, device and slots over time.

    The JSON holds a track for every actor, every slot and the device, arrows from a request to the
    step that ran it first, and counters for who waits and runs, free blocks and batch tokens.
    """
    if out.suffix.lower() not in FORMATS:
        raise Mistake(f"--out writes .json or .svg, not {out.suffix or out.name}")
    from ..actors.recording import timeline_of
    from ..actors.story.perfetto import trace_events

    with progress(f"drawing {recording}"):
        timeline = timeline_of(open_recording(recording))
        if out.suffix.lower() == ".svg":
            from .timeline_picture import draw

            text = draw(timeline)
        else:
            text = json.dumps(trace_events(timeline))
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Mistake(f"cannot write {out}: {error.strerror}") from error
    write(f"{out}: {len(timeline.spans):,} spans on {len(timeline.tracks):,} tracks\n")
