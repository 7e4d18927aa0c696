"""Results as JSON fields, and rows as aligned text."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from ..messages import AnswerPart, Output, Result
from .logprob_fields import logprob_fields, prompt_logprob_fields
from .output import is_plain, is_terminal, without_controls
from .terminal_size import terminal_size

_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")


def result_fields(result: Result) -> dict[str, object]:
    """The JSON form of a finished request."""
    return {
        **_output_fields(result.outputs[0]),
        **_further(result.outputs),
        **prompt_logprob_fields(result),
        "usage": {name: getattr(result.usage, name) for name in _COUNTS},
        "timings": asdict(result.timings),
    }


def _further(outputs: Sequence[Output]) -> dict[str, object]:
    return {"outputs": [_output_fields(output) for output in outputs]} if len(outputs) > 1 else {}


def _output_fields(output: Output) -> dict[str, object]:
    return {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": str(output.finish_reason),
        "stop_reason": output.stop_reason,
        **({"message": output.message} if output.parts else {}),
        **logprob_fields(output),
    }


def part_fields(part: AnswerPart) -> dict[str, object]:
    """The JSON form of a part; its source is told where its text says something else."""
    fields = asdict(part)
    kind, source = fields.pop("type"), fields.pop("source")
    told = {} if fields.get("text") == source else {"source": source}
    return {"type": kind, **fields, **told}


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Rows in aligned columns, as text; in bold and dim on a terminal that can."""
    from rich.console import Console
    from rich.table import Table

    cells = [[without_controls(cell) for cell in row] for row in rows]
    grid = Table(box=None, show_header=bool(header), pad_edge=False, header_style="bold")
    for column in range(max(map(len, [header, *cells]))):
        # What is too wide goes on in the next line: nothing is cut off.
        grid.add_column(header[column] if header else "", overflow="fold")
    for row in cells:
        grid.add_row(*row)
    decorated = is_terminal(sys.stdout) and not is_plain()
    width = terminal_size().columns if is_terminal(sys.stdout) else 200
    console = Console(no_color=not decorated, width=width, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(grid)
    lines = captured.get().splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)
