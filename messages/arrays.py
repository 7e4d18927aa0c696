"""Columns: the numpy arrays that messages carry, and how such messages are compared."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)
Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float32]


def frozen_ints(values: Iterable[int] | Ints) -> Ints:
    """An owned, read-only int32 copy: what a message may carry (never a view of a ledger)."""
    is_sized = isinstance(values, (np.ndarray, list, tuple))
    array = np.array(values if is_sized else list(values), dtype=np.int32)
    array.setflags(write=False)
    return array


def seal(array: NDArray[T]) -> NDArray[T]:
    """Mark an array that nobody else holds as read-only, without copying it."""
    array.setflags(write=False)
    return array


def frozen_longs(values: Iterable[int]) -> Longs:
    """An owned, read-only int64 array: indices, which numpy uses as they are."""
    is_sized = isinstance(values, (np.ndarray, list, tuple))
    return seal(np.array(values if is_sized else list(values), dtype=np.int64))


NO_INTS: Ints = frozen_ints(())
NO_LONGS: Longs = frozen_longs(())


def same(left: object, right: object) -> bool:
    """Whether two messages are equal, arrays included (dtype, shape and values)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if is_dataclass(left) and not isinstance(left, type):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right
