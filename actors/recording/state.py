"""The state of the cores as plain values, and back into cores that were built anew.

Captured is every object of the cores that belongs to the packages of Batcher and BlockPool, field
by field, with what several refer to once. What is not state stays out: functions, actors, and views
of arrays, which new cores have of their own. Nothing is run that the values name: they are filled
into objects of known classes.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from itertools import chain, groupby
from typing import Any

import numpy as np

from ...messages import DecodeError
from ..batching.ledger import Ledger
from ..cores import Cores

_ROOT = __name__.split(".", 1)[0]
_OWN = (f"{_ROOT}.actors.batching.", f"{_ROOT}.kvpool.")
_MESSAGES = f"{_ROOT}.messages."
_ATOMS = (int, str, bytes, bool, float, type(None))
CONTAINERS: dict[str, type] = {
    "list": list,
    "dict": dict,
    "ordered": OrderedDict,
    "set": set,
    "deque": deque,
    "frozenset": frozenset,
}
_NAMES = {kind: name for name, kind in CONTAINERS.items()}
_SKIPPED = ["skipped"]
_TOKENS = ("tokens", "_flat_tokens", "blocks")  # of a Ledger: one array, seen in three ways
TIMES = "times"
FLAT = "flat "  # before the name of a container whose parts are kept as they are


class NotCapturable(Exception):
    """Something live cannot be written down, such as a grammar in the middle of an answer."""


_ATOM, _MESSAGE, _ONCE, _OTHER = range(4)


@cache
def _sort_of(kind: type) -> int:
    """How values of this type are captured."""
    if kind in _ATOMS:
        return _ATOM
    module = f"{kind.__module__}."
    if module.startswith(_MESSAGES) and is_dataclass(kind):
        return _MESSAGE
    is_own = module.startswith(_OWN)
    return _ONCE if is_own or kind in (*_NAMES, np.ndarray, bytearray) else _OTHER


def capture(cores: Cores) -> Any:
    """The state of the cores between two turns; nothing of it changes with them.

    Raises NotCapturable.
    """
    found = _Capture()
    parts = (cores.batcher, cores.pool, cores.scheduler.failures_in_a_row)
    return ["tuple", [found.of(part) for part in parts]]


class _Capture:
    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # so that no id is used twice meanwhile

    def of(self, value: Any) -> Any:
        kind: type = type(value)
        sort = _sort_of(kind)
        if sort == _ATOM:
            return value
        if sort == _ONCE:
            return self._once(kind, value)
        if sort == _MESSAGE:
            return ["message", value]
        if kind is tuple:
            return ["tuple", [self.of(part) for part in value]]
        if isinstance(value, Enum):
            return ["enum", kind.__name__, value.value]
        if isinstance(value, np.generic):
            return value.item()
        if hasattr(value, "is_over"):  # a grammar, which knows how far its answer has come
            raise NotCapturable("a request with a grammar is live")
        return _SKIPPED

    def _once(self, kind: type, value: Any) -> Any:
        """What several may refer to."""
        place = self._seen.get(id(value))
        if place is not None:
            return ["again", place]
        place = self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        if kind is np.ndarray:
            return self._array(value, place)
        if kind is bytearray:
            return ["bytes", place, bytes(value)]
        if kind in _NAMES:
            return self._container(_NAMES[kind], place, value)
        return ["object", place, f"{kind.__module__}:{kind.__qualname__}", self._fields(value)]

    def _array(self, value: Any, place: int) -> Any:
        data = value.copy() if value.flags.writeable else value
        return ["array", place, data, bool(value.flags.writeable)]

    def _fields(self, value: object) -> dict[str, Any]:
        skipped = _TOKENS if isinstance(value, Ledger) else ()
        fields = {name: self.of(part) for name, part in _state_of(value) if name not in skipped}
        if isinstance(value, Ledger):  # most of its tokens are those of nobody
            live = [slot for slot, each in enumerate(value.sequences) if each is not None]
            rows = [value.tokens[slot, : value.confirmed[slot]].copy() for slot in live]
            fields["tokens"] = ["rows", live, rows]
        return fields

    def _container(self, name: str, place: int, value: Any) -> Any:
        parts = list(value.items()) if isinstance(value, dict) else list(value)
        if _is_flat(parts):
            return [FLAT + name, place, parts]
        return [name, place, list(self._in_a_row(parts))]

    def _in_a_row(self, parts: list[Any]) -> Iterator[Any]:
        """Of neighbours that are one thing only the first: blocks in a row have one owner."""
        for _, group in groupby(parts, key=id):
            first, *others = group
            part = self.of(first)
            yield [TIMES, part, 1 + len(others)] if others else part


def _state_of(value: object) -> Iterator[tuple[str, Any]]:
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))
    yield from getattr(value, "__dict__", {}).items()


def _is_flat(parts: list[Any]) -> bool:
    """Whether a shallow copy suffices: atoms, or tuples of tuples of them."""
    for _ in range(3):
        kinds = set(map(type, parts))
        if kinds <= set(_ATOMS):
            return True
        if not kinds <= {tuple, *_ATOMS}:
            return False
        parts = list(chain.from_iterable(part for part in parts if type(part) is tuple))
    return False


def restore(cores: Cores, state: Any) -> None:
    """Fill captured state into cores that were built like the first. Raises DecodeError."""
    try:
        filled = _Restore()
        batcher, pool, failures = state[1]
        filled.into(cores.batcher, batcher)
        filled.into(cores.pool, pool)
        cores.scheduler.failures_in_a_row = failures
        cores.pool.rehash()
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ImportError) as error:
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
            for slot, tokens in zip(rows[1], rows[2], strict=True):
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
    found = getattr(import_module(_MESSAGES.rstrip(".")), name)
    if not isinstance(found, type) or not issubclass(found, Enum):
        raise DecodeError(f"{name!r} is no choice of the cores")
    return found


def _class_of(name: str) -> Any:
    module, _, kind = name.partition(":")
    if not f"{module}.".startswith(_OWN):
        raise DecodeError(f"{name!r} is no part of the cores")
    return getattr(import_module(module), kind)
