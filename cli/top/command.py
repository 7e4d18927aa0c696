"""The command `top`: asks again and again, and shows what has changed."""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
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
    """Look at the engine whose --stats-socket is SOCKET, until it ends, or q or Ctrl-C.

    A terminal shows one picture that changes, a pipe gets a line for each look.
    """
    is_live = is_terminal(sys.stdout) and not is_plain() and not as_json and not once
    try:
        if is_live:
            _show_live(path, interval)
        else:
            _tell(path, interval, once=once, as_json=as_json)
    except EngineGone:
        if not as_json:
            write("the engine has ended\n")


def _tell(path: Path, interval: float, *, once: bool, as_json: bool) -> None:
    """One after another, or the first. Raises EngineGone."""
    with StatsClient(path) as client:
        for reading in _readings(client, partial(_sleep, interval)):
            if as_json:
                write_json(reading.fields())
            elif once:
                write("".join(f"{row}\n" for row in screen(reading, 1000)))
            else:
                write(line(reading) + "\n")
            if once:
                return


def _show_live(path: Path, interval: float) -> None:
    """Until the engine ends, or q. Raises EngineGone."""
    from .live import LivePicture

    picture = LivePicture()
    with StatsClient(path) as client, picture.shown():
        for reading in _readings(client, partial(picture.wait, interval)):
            picture.show(reading)


def _readings(client: StatsClient, wait: Callable[[], bool]) -> Iterator[Reading]:
    """One after another, as long as there is something to wait for."""
    before, asked_s = client.ask(), time.monotonic()
    while wait():
        now, now_s = client.ask(), time.monotonic()
        yield Reading.between(before, now, now_s - asked_s)
        before, asked_s = now, now_s


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True
