"""A difference between a recording and its replay, told so that a person sees what differs."""

import reprlib
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from ...messages import Message, same

NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a replay says something else; None stands for silence."""

    turn: int  # the turn in which it was noticed
    receiver: str  # the actor that the messages are for
    recorded: Message | str | None  # a text tells of a failure
    replayed: Message | str | None

    def lines(self) -> list[str]:
        """What was recorded and what was replayed, field by field where both are of one type."""
        head = f"different in turn {self.turn}, in what the {self.receiver} hears:"
        if type(self.recorded) is type(self.replayed) and is_dataclass(self.recorded):
            name = type(self.recorded).__name__
            return [f"{head} {name}", *_differing_fields("", self.recorded, self.replayed)]
        return [head, *_pair("recorded", self.recorded), *_pair("replayed", self.replayed)]


def _pair(what: str, message: Message | str | None) -> list[str]:
    if message is None or isinstance(message, str):
        return [f"  {what}: {message or NOTHING}"]
    names = [f"    {f.name}: {_short(getattr(message, f.name))}" for f in fields(message)]
    return [f"  {what}: {type(message).__name__}", *names]


def _differing_fields(path: str, recorded: Any, replayed: Any) -> list[str]:
    lines: list[str] = []
    for field in fields(recorded):
        left, right = getattr(recorded, field.name), getattr(replayed, field.name)
        if not same(left, right):
            lines += _differing_values(f"{path}{field.name}", left, right)
    return lines


def _differing_values(path: str, left: Any, right: Any) -> list[str]:
    """Down to the first part that differs, in arrays, tuples and nested dataclasses."""
    if is_dataclass(left) and type(left) is type(right):
        return _differing_fields(f"{path}.", left, right)
    if isinstance(left, (np.ndarray, tuple)) and type(left) is type(right):
        place = _first_differing(left, right)
        if place < min(len(left), len(right)):
            lengths = "" if len(left) == len(right) else f" (of {len(left)} and {len(right)})"
            return _differing_values(f"{path}[{place}]{lengths}", left[place], right[place])
    return [f"  {path}: recorded {_short(left)}, replayed {_short(right)}"]


def _first_differing(left: Any, right: Any) -> int:
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if not same(one, other):
            return place
    return min(len(left), len(right))


def _short(value: Any) -> str:
    if isinstance(value, np.generic):
        return str(value.item())
    text = reprlib.repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 200 else text[:197] + "..."
