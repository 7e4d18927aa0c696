"""What reaches standard output, and whether it may be decorated there."""

import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

_KEPT_CONTROLS = "\n\t"


class ReaderGone(Exception):
    """Raised when whoever read our output has closed the pipe: there is nobody to answer."""


def write(text: str) -> None:
    """Write and flush, so that a stream is seen as it comes."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


def write_json(value: Mapping[str, object]) -> None:
    write(json.dumps(value) + "\n")


def write_answer(text: str) -> None:
    """Write a piece of an answer: exact in a pipe, without the power to command a terminal."""
    write(without_controls(text) if is_terminal(sys.stdout) else text)


def without_controls(text: str) -> str:
    """The text without characters that move a cursor, ring a bell or start an escape sequence."""
    return "".join(c for c in text if c in _KEPT_CONTROLS or not _is_control(c))


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character < "\xa0"


def drop_stdout() -> None:
    """Point standard output nowhere, so that the interpreter's last flush finds no broken pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def is_plain() -> bool:
    """Whether the user asked for no decoration."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") == "dumb"
