"""Standard input, output and error, also where whoever started the command had closed them."""

import io
import os
import sys


def open_closed_streams() -> None:
    """Stand in for closed streams with the null device.

    Otherwise the next file that is opened takes the number of a closed stream: what was meant for
    the screen goes into it, and an event loop that closes it ends the process.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def show_what_can_be_shown() -> None:
    """A character that the terminal's encoding lacks is shown as a question mark: an answer may
    hold any, and none of them is a reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
