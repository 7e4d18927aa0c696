"""What was piped in."""

import sys

from .mistake import Mistake
from .output import is_terminal


def stdin_is_terminal() -> bool:
    return is_terminal(sys.stdin)


def read_stdin() -> str:
    """Everything on standard input without its last line end; empty when there is no input."""
    if sys.stdin is None or sys.stdin.closed:
        return ""
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise Mistake(
            f"standard input is not UTF-8 text (byte {error.start} does not fit)"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")
