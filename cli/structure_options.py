"""The options about what an answer must look like."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from ..messages import StructuredOutput
from .mistake import Mistake
from .sampling_options import SamplingOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False, path_type=Path)
_OPTIONS = {
    "json_schema": click.option(
        "--json-schema", type=_FILE, metavar="FILE", help="The answer is JSON of this schema."
    ),
    "json_object": click.option("--json-object", is_flag=True, help="The answer is a JSON object."),
    "regex": click.option(
        "--regex", metavar="PATTERN", help="The whole answer matches this expression."
    ),
    "choice": click.option(
        "--choice", multiple=True, metavar="TEXT", help="The answer is one of these. Repeatable."
    ),
    "grammar": click.option(
        "--grammar", type=_FILE, metavar="FILE", help="The answer is of this Lark grammar."
    ),
}


def structure_options(command: Command) -> Command:
    """Give a command that has `sampling` the options about structure, which go into it."""

    @wraps(command)
    def gathered(*, sampling: SamplingOptions, **values: Any) -> Any:
        values_of = {name: values.pop(name) for name in _OPTIONS}
        said = {name: value for name, value in values_of.items() if value not in (None, False, ())}
        if len(said) > 1:
            flags = " and ".join("--" + name.replace("_", "-") for name in said)
            raise Mistake(f"{flags} were given; an answer follows one of them")
        given = dict(sampling.given)
        for name, value in said.items():
            given["structured_output"] = _structure(name, value)
        return command(sampling=SamplingOptions(given), **values)

    for option in reversed(_OPTIONS.values()):
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]  # what click makes of it


def _structure(name: str, value: Any) -> StructuredOutput:
    match name:
        case "json_schema":
            return StructuredOutput.json_schema(_read(value))
        case "json_object":
            return StructuredOutput.json_object()
        case "regex":
            return StructuredOutput.regex(value)
        case "choice":
            return StructuredOutput.choice(value)
        case _:
            return StructuredOutput.grammar(_read(value))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Mistake(f"{path} is not text in UTF-8") from error
