"""Rows of the vocabulary's width for the slots that want one, and for no others. Numpy only."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..messages import Longs


class RowPlaces:
    """Which row of a table each slot has. As many are in use as there were such slots at once: who
    comes takes the place of who left."""

    def __init__(self, num_slots: int) -> None:
        self._places = np.full(num_slots, -1, dtype=np.int64)  # by slot; -1: none
        self._free: list[int] = []
        self._used = 0

    def of(self, slots: Longs) -> Longs:
        """The rows of these slots; -1 where none."""
        found: Longs = self._places[slots]
        return found

    def take(self, slot: int) -> int:
        """A row for a slot that has none."""
        assert self._places[slot] < 0, "the slot has a row"
        if not self._free:
            self._free.append(self._used)
            self._used += 1
        place = self._places[slot] = self._free.pop()
        return place

    def drop(self, slot: int) -> None:
        """The slot wants none any more; a no-op where it has none."""
        if self._places[slot] >= 0:
            self._free.append(int(self._places[slot]))
            self._places[slot] = -1


class RowPool:
    """A table that grows, with a row for each slot that wants one."""

    def __init__(self, num_slots: int, dtype: DTypeLike) -> None:
        self._places = RowPlaces(num_slots)
        self.table: NDArray[Any] = np.zeros((0, 0), dtype=dtype)
        """All rows; those of no slot hold anything."""

    def places(self, slots: Longs) -> Longs:
        """Which rows of the table these slots have; -1 where none."""
        return self._places.of(slots)

    def start(self, slot: int, width: int) -> NDArray[Any]:
        """A row for a slot that has none, all zero; every row is of this width."""
        place, old = self._places.take(slot), self.table
        if place >= len(old):
            self.table = np.zeros((max(2 * len(old), 4), width), dtype=old.dtype)
            self.table[: len(old)] = old.reshape(len(old), width)
        row: NDArray[Any] = self.table[place]
        row.fill(0)
        return row

    def drop(self, slot: int) -> None:
        """The slot wants none any more; a no-op where it has none."""
        self._places.drop(slot)

    def take(self, slots: Longs) -> NDArray[Any]:
        """The rows of these slots, copied.  # [slots, vocab]"""
        rows: NDArray[Any] = self.table[self.places(slots)]
        return rows
