"""Rows of the vocabulary's width for the slots that want one, and for no others."""

import numpy as np
import torch
from torch import Tensor

from ..messages import Longs
from .uploads import to_device


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


class RowTable:
    """A table on a device that grows with the rows that are asked for."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._table: Tensor | None = None  # [rows, width]

    @property
    def whole(self) -> Tensor:
        """All rows; those that nobody has hold anything."""
        assert self._table is not None, "no row was asked for"
        return self._table

    def row(self, place: int, width: int, device: torch.device) -> Tensor:
        """One of the rows, which are all of this width."""
        if self._table is None or place >= len(self._table):
            self._grow(place, width, device)
        return self.whole[place]

    def _grow(self, place: int, width: int, device: torch.device) -> None:
        old = 0 if self._table is None else len(self._table)
        table = torch.zeros((max(2 * old, 4, place + 1), width), dtype=self._dtype, device=device)
        if self._table is not None:
            table[:old] = self._table
        self._table = table


class RowPool:
    """A table on the logits' device with a row for each slot that wants one."""

    def __init__(self, num_slots: int, dtype: torch.dtype) -> None:
        self._places = RowPlaces(num_slots)
        self._rows = RowTable(dtype)

    @property
    def table(self) -> Tensor:
        """All rows; those of no slot hold anything."""
        return self._rows.whole

    def places(self, slots: Longs) -> Longs:
        """Which rows of the table these slots have; -1 where none."""
        return self._places.of(slots)

    def start(self, slot: int, logits: Tensor) -> Tensor:
        """A row for a slot that has none, all zero; as wide as the logits, and beside them."""
        place = self._places.take(slot)
        return self._rows.row(place, logits.shape[-1], logits.device).zero_()

    def drop(self, slot: int) -> None:
        """The slot wants none any more; a no-op where it has none."""
        self._places.drop(slot)

    def take(self, slots: Longs) -> Tensor:
        """The rows of these slots, copied.  # [slots, vocab]"""
        return self.table[to_device(self.places(slots), self.table.device)]
