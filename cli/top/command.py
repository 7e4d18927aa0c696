"""The command `top`: asks again and again, and shows what has changed."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from ..output import is_plain, is_terminal, write, write_json
from .client import EngineGone, StatsClient
from .view import Reading, line, screen


@click.command(short_help="Look at a running engine: batch, queue, blocks, speed, lag.")
@click.argument("path", metavar="SOCKET", type=click.Path(path_type=Path))
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.05, 3600),
    metavar="S",
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, over one interval.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per look.")
def top(path: Path, interval: float, once: bool, as_json: bool) -> None:
    """Look at the engine whose --stats-socket is SOCKET, until it ends or Ctrl-C.

    A terminal shows one picture that changes, a pipe gets a line for each look.
    """
    is_live = is_terminal(sys.stdout) and not is_plain() and not as_json and not once
    num_lines = 0  # of the picture that is there
    try:
        for reading in _readings(path, interval):
            if as_json:
                write_json(reading.fields())
            elif is_live:
                num_lines = _redraw(reading, num_lines)
            elif once:
                write("".join(f"{row}\n" for row in screen(reading, 1000)))
            else:
                write(line(reading) + "\n")
            if once:
                return
    except EngineGone:
        if is_live or not as_json:
            write("the engine has ended\n")


def _readings(path: Path, interval: float) -> Iterator[Reading]:
    """Without end, an interval after one another."""
    with StatsClient(path) as client:
        before, asked_s = client.ask(), time.monotonic()
        while True:
            time.sleep(interval)
            now, now_s = client.ask(), time.monotonic()
            yield Reading.between(before, now, now_s - asked_s)
            before, asked_s = now, now_s


def _redraw(reading: Reading, num_lines: int) -> int:
    """Write the picture over the one before; returns how many lines it has."""
    from ..terminal_size import terminal_size

    lines = screen(reading, terminal_size().columns - 1)
    back = f"\x1b[{num_lines}A" if num_lines else ""
    write(back + "".join(f"\r\x1b[K{text}\n" for text in lines))
    return len(lines)
