"""How large the terminal is, whatever the environment says of it."""

import os
import sys
from typing import NamedTuple


class Size(NamedTuple):
    """Of a terminal, in characters."""

    columns: int
    rows: int


def terminal_size() -> Size:
    """At least one by one: a terminal that has not been told says nothing by nothing."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return Size(80, 24)
    return Size(max(size.columns, 1), max(size.lines, 1))
