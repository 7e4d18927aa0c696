"""The table of sampling parameters as Markdown.

`python -m stepahead.messages.param_docs docs/sampling.md` writes it between the file's markers.
"""

import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from .params import PARAMETERS, SamplingParams

BEGIN = "<!-- made from messages/params.py by `make docs` -->"
END = "<!-- end of what is made -->"
_HEAD = ("Field", "Type", "Default", "Meaning", "Must be", "Applied by")


def parameter_table() -> str:
    """A row for each field, in order."""
    hints = get_type_hints(SamplingParams)
    lines = [_row(_HEAD), _row(("---",) * len(_HEAD))]
    for field in fields(SamplingParams):
        param = PARAMETERS[field.name]
        lines.append(
            _row(
                (
                    f"`{field.name}`",
                    f"`{_type_name(hints[field.name])}`",
                    f"`{field.default!r}`",
                    param.meaning,
                    param.rule.right,
                    param.by,
                )
            )
        )
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The documentation with the table as it is now."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, "the documentation has no place for the table"
    assert end, "the documentation's table has no end"
    return f"{before}{BEGIN}\n\n{parameter_table()}\n\n{END}{after}"


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type_name(hint: object) -> str:
    name = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    return name.replace("collections.abc.", "")


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
