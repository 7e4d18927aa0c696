"""The shortest script that still fails: fewer operations first, then plainer values.

A script has no chance in it, so what is left out changes nothing but what depends on it.
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, replace
from typing import Any, TypeAlias

from stepahead import ConfigError

from .life import Violation, live
from .script import Operation, Script, Settings

Fails: TypeAlias = Callable[[Script], str | None]  # what is wrong, or None

MAX_RUNS = 1_500


def violation_of(script: Script) -> str | None:
    """What is wrong in a script's life, without names and numbers, so that it can be compared; a
    script that no engine can be made for has no life."""
    try:
        live(script)
    except Violation as violation:
        return re.sub(r"\br?\d+\b", "N", str(violation))
    except ConfigError:
        pass
    return None


def shrink(script: Script, fails: Fails = violation_of) -> Script:
    """A script that fails in the same way, and of which nothing can be left out."""
    return _Shrinker(script, fails).shrink()


class _Shrinker:
    def __init__(self, script: Script, fails: Fails) -> None:
        self._best = script
        self._fails = fails
        self._wanted = fails(script)
        assert self._wanted is not None, "the script does not fail"
        self._runs = 0

    def shrink(self) -> Script:
        before = None
        while before != self._best:
            before = self._best
            self._drop_operations()
            self._simplify_settings()
            self._simplify_operations()
        return self._best

    def _try(self, script: Script) -> bool:
        """Whether it fails in the same way; if so it is the best so far."""
        if script == self._best or self._runs >= MAX_RUNS:
            return False
        self._runs += 1
        if self._fails(script) != self._wanted:
            return False
        self._best = script
        return True

    def _drop_operations(self) -> None:
        """Delta debugging: ever smaller pieces, as long as some can go (Zeller 1999)."""
        size = len(self._best.operations) // 2
        while size:
            start = 0
            while start < len(self._best.operations):
                kept = self._best.operations[:start] + self._best.operations[start + size :]
                if not self._try(replace(self._best, operations=kept)):
                    start += size
            size //= 2

    def _simplify_settings(self) -> None:
        """As usual, where that does."""
        for field in fields(Settings):
            usual: Any = field.default
            settings = replace(self._best.settings, **{field.name: usual})
            self._try(replace(self._best, settings=settings))

    def _simplify_operations(self) -> None:
        for place, operation in enumerate(self._best.operations):
            for field in fields(operation):
                while any(
                    self._try(self._with(place, field.name, value))
                    for value in _plainer(getattr(self._best.operations[place], field.name), field)
                ):
                    pass

    def _with(self, place: int, name: str, value: Any) -> Script:
        operations = list[Operation](self._best.operations)
        operations[place] = replace(operations[place], **{name: value})
        return replace(self._best, operations=tuple(operations))


def _plainer(given: Any, field: Field[Any]) -> list[Any]:
    """Plainer values for a field than the given one, the plainest first."""
    if field.default is MISSING or given == field.default:
        return []
    smaller = [given // 2, given - 1] if type(given) is int and given > 1 else []
    return [field.default, *smaller]
