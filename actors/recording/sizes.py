"""How much memory messages keep alive, about: what bounds a ring. It is asked for one message of
so many while the engine runs, so it looks at types once, and at values without ado."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

ARRAY_BYTES = 112
_SMALL = {part | None for part in (int, float, bool, str, bytes)} | {
    *(int, float, bool, str, bytes),
    tuple[int, ...],
    tuple[str, ...],
}

_Reader: TypeAlias = Callable[[Any], tuple[Any, ...]]  # the fields of a message that may be large


def held_by(message: Any) -> int:
    """The bytes of the arrays that a message holds, directly or in its parts."""
    reader = _READERS[type(message)]
    return 0 if reader is None else _held_in(reader(message))


def _held_in(values: tuple[Any, ...]) -> int:
    total = 0
    for value in values:
        kind = type(value)
        if kind is np.ndarray:
            total += ARRAY_BYTES + value.nbytes
        elif kind is tuple:
            if value:  # of one kind of parts
                total += len(value) * held_by(value[0])
        elif (reader := _READERS[kind]) is not None:
            total += _held_in(reader(value))
    return total


class _Readers(dict[type, _Reader | None]):
    """By type; None for what is neither a message nor a part of one."""

    def __missing__(self, kind: type) -> _Reader | None:
        reader = self[kind] = _reader(kind) if is_dataclass(kind) else None
        return reader


def _reader(kind: Any) -> _Reader:
    names = [field.name for field in fields(kind) if field.type not in _SMALL]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)


_READERS = _Readers()
