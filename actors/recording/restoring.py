"""Captured state back into cores: see state.py.

Nothing is run that the values name: they are filled into objects of known classes.
"""

from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any

import numpy as np

from ...messages import DecodeError, RequestRejected
from ..batching.ledger import Ledger
from ..cores import Cores
from .snapshot import MESSAGES, OWN
from .state import CONTAINERS, FLAT, TIMES

_WRONG = (  # the last one: a grammar that cannot be
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    ImportError,
    RequestRejected,
)


def restore(cores: Cores, state: Any) -> None:
    """Fill captured state into cores that were built like the first. Raises DecodeError."""
    try:
        filled = _Restore()
        batcher, pool, failures = state[1]
        filled.into(cores.batcher, batcher)
        filled.into(cores.pool, pool)
        cores.scheduler.failures_in_a_row = failures
        cores.pool.rehash()
        cores.batcher.reopen_grammars()
    except _WRONG as error:
        raise DecodeError(f"the state of the cores cannot be restored: {error}") from error


class _Restore:
    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def into(self, fresh: Any, state: Any) -> Any:
        """The value that a state stands for; what is there already is filled where it can be."""
        if not isinstance(state, list):
            return state
        match state:
            case ["skipped"]:
                return fresh
            case ["again", place]:
                return self._made[place]
            case ["tuple", parts]:
                before = fresh if isinstance(fresh, tuple) and len(fresh) == len(parts) else ()
                padded = [*before, *[None] * (len(parts) - len(before))]
                return tuple(self.into(old, part) for old, part in zip(padded, parts, strict=True))
            case ["enum", name, value]:
                return _enum_of(name)(value)
            case ["message", message]:
                return message
            case ["bytes", place, data]:
                self._made[place] = array = bytearray(data)
                return array
            case ["array", place, data, is_writable]:
                return self._array(fresh, place, data, is_writable)
            case ["object", place, name, values]:
                return self._object(fresh, place, name, values)
            case [str() as name, place, parts] if name.removeprefix(FLAT) in CONTAINERS:
                return self._container(name, place, parts)
            case _:
                raise DecodeError(f"the state of the cores is damaged: {str(state)[:200]}")

    def _array(self, fresh: Any, place: int, data: Any, is_writable: bool) -> Any:
        if not is_writable:
            self._made[place] = data
            return data
        is_same = isinstance(fresh, np.ndarray) and fresh.shape == data.shape
        if is_same and fresh.flags.writeable:
            fresh[...] = data
        else:
            fresh = data.copy()
        self._made[place] = fresh
        return fresh

    def _object(self, fresh: Any, place: int, name: str, values: dict[str, Any]) -> Any:
        kind = _class_of(name)
        value = fresh if type(fresh) is kind else kind.__new__(kind)
        self._made[place] = value
        rows = values.pop("tokens", None) if kind is Ledger else None
        for field, part in values.items():
            filled = self.into(getattr(value, field, None), part)
            object.__setattr__(value, field, filled)
        if rows is not None:
            for slot, said in zip(rows[1], rows[2], strict=True):
                prompt = value.sequences[slot].request.prompt
                tokens = np.concatenate([prompt, said])
                value.tokens[slot, : len(tokens)] = tokens
        return value

    def _container(self, name: str, place: int, parts: list[Any]) -> Any:
        kind = CONTAINERS[name.removeprefix(FLAT)]
        value = self._made[place] = kind()
        if not name.startswith(FLAT):
            parts = list(self._one_by_one(parts))
        if kind is frozenset:
            value = self._made[place] = frozenset(parts)
        elif issubclass(kind, (dict, set)):
            value.update(parts)
        else:
            value.extend(parts)
        return value

    def _one_by_one(self, parts: list[Any]) -> Iterator[Any]:
        for part in parts:
            match part:
                case [str() as name, each, int() as count] if name == TIMES:
                    yield from [self.into(None, each)] * count
                case _:
                    yield self.into(None, part)


def _enum_of(name: str) -> type[Enum]:
    found = getattr(import_module(MESSAGES.rstrip(".")), name)
    if not isinstance(found, type) or not issubclass(found, Enum):
        raise DecodeError(f"{name!r} is no choice of the cores")
    return found


def _class_of(name: str) -> Any:
    module, _, kind = name.partition(":")
    if not f"{module}.".startswith(OWN):
        raise DecodeError(f"{name!r} is no part of the cores")
    return getattr(import_module(module), kind)
