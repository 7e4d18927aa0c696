"""Lines of our own, broken between words where the terminal is narrower. An answer is never
touched: the terminal breaks it, so that what is copied is what was said."""

import re
import sys
from collections.abc import Iterator
from itertools import chain

from wcwidth import wcswidth

from .output import is_terminal
from .terminal_size import terminal_size

_LABEL = re.compile(r" *(?:\S+(?: \S+)*?  +)?")  # what stands before a text, like its time
_HANG = 2


def shown(text: str, between: str = " ") -> str:
    """The text as standard output is to get it: what is no terminal has no columns."""
    return fitted(text, terminal_size().columns, between) if is_terminal(sys.stdout) else text


def fitted(text: str, columns: int, between: str = " ") -> str:
    """The text in lines of so many columns, broken where `between` stands; what goes on in another
    line stands below its beginning. A word that is longer is left to the terminal."""
    lines = (_broken(line, columns, between) for line in text.split("\n"))
    return "\n".join(chain.from_iterable(lines))


def _broken(line: str, columns: int, between: str) -> Iterator[str]:
    if wcswidth(line) <= columns:
        yield line
        return
    label = _label(line)
    hang = " " * (len(label) if _HANG < len(label) <= columns // 2 else _HANG)
    row, joint = label, ""
    for word in line[len(label) :].split(between):
        longer = row + joint + word
        if row.strip() and wcswidth(longer) > columns:
            yield (row + joint).rstrip()
            longer = hang + word
        row, joint = longer, between
    yield row


def _label(line: str) -> str:
    found = _LABEL.match(line)
    return found[0] if found else ""
