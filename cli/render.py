"""Results as JSON fields, and rows as aligned text."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from ..messages import Result
from .output import is_plain, is_terminal, without_controls

_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")


def result_fields(result: Result) -> dict[str, object]:
    """The JSON form of a finished request."""
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": str(result.finish_reason),
        "stop_reason": result.stop_reason,
        "usage": {name: getattr(result.usage, name) for name in _COUNTS},
        "timings": asdict(result.timings),
    }


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Rows in aligned columns, as text; in bold and dim on a terminal that can."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(*header, box=None, show_header=bool(header), pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*(without_controls(cell) for cell in row))
    decorated = is_terminal(sys.stdout) and not is_plain()
    width = None if is_terminal(sys.stdout) else 200
    console = Console(no_color=not decorated, width=width, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(grid)
    lines = captured.get().splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)
