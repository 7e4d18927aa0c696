"""The options about sampling, made from the table of sampling parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import click

from ..messages import SamplingParams
from ..messages.param_rules import Biases, Flag, Number, Param, Texts, TokenIds, Whole
from ..messages.params import PARAMETERS

Command = TypeVar("Command", bound=Callable[..., Any])

_OFFERED = {name: param for name, param in PARAMETERS.items() if param.has_option}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """What was said about sampling, and only that."""

    given: Mapping[str, Any]

    def params(self, base: SamplingParams | None = None) -> SamplingParams:
        """The base with what was given; raises RequestRejected where a value has no meaning."""
        return replace(base or SamplingParams(), **self.given)


def sampling_options(command: Command) -> Command:
    """Give a command the options about sampling, as its argument `sampling`."""

    @wraps(command)
    def gathered(**values: Any) -> Any:
        said = {name: values.pop(name) for name in _OFFERED}
        given = {name: value for name, value in said.items() if value not in (None, (), {})}
        return command(**values, sampling=SamplingOptions(given))

    for name, param in reversed(list(_OFFERED.items())):
        gathered = _option(name, param)(gathered)
    return gathered  # type: ignore[return-value]  # what click makes of it


def _option(name: str, param: Param) -> Callable[[Any], Any]:
    """`--top-k K` for `top_k`; what can have several values may be given several times."""
    flag = f"--{name.replace('_', '-')}"
    match param.rule:
        case Whole():
            return click.option(flag, type=int, metavar="N", help=param.meaning)
        case Number():
            return click.option(flag, type=float, metavar="X", help=param.meaning)
        case Flag():
            both = f"{flag}/--no-{flag[2:]}"
            return click.option(both, default=None, help=param.meaning)
        case Texts():
            again = f"{param.meaning} Repeatable."
            return click.option(flag, multiple=True, metavar="TEXT", help=again)
        case TokenIds():
            again = f"{param.meaning} Repeatable."
            return click.option(flag, multiple=True, type=int, metavar="ID", help=again)
        case Biases():
            again = f"{param.meaning} Repeatable."
            return click.option(flag, multiple=True, metavar="ID=X", callback=_biases, help=again)
        case _:
            raise TypeError(f"{name}: no option is made for {param.rule}")


def _biases(
    context: click.Context, option: click.Parameter, said: tuple[str, ...]
) -> Mapping[int, float]:
    """`ID=X` for each."""
    biases: dict[int, float] = {}
    for text in said:
        token_id, _, bias = text.partition("=")
        try:
            biases[int(token_id)] = float(bias)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} is not ID=X", context, option) from error
    return biases
