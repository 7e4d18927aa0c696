"""RowPool: a row of the vocabulary's width for each slot that wants one."""

import numpy as np
import torch
from torch import Tensor

from ..messages import Longs


class RowPool:
    """A table on the logits' device that grows with the slots that use it, never for others.

    It holds as many rows as there were such slots at once; who comes takes the place of who left.
    """

    def __init__(self, num_slots: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._table: Tensor | None = None  # [rows, vocab]
        self._places = np.full(num_slots, -1, dtype=np.int64)  # by slot, its row; -1: none
        self._free: list[int] = []

    @property
    def table(self) -> Tensor:
        """All rows; those of no slot hold anything."""
        assert self._table is not None, "no slot has a row"
        return self._table

    def places(self, slots: Longs) -> Longs:
        """Which rows of the table these slots have; -1 where none."""
        found: Longs = self._places[slots]
        return found

    def start(self, slot: int, logits: Tensor) -> Tensor:
        """A row for a slot that has none, all zero; as wide as the logits, and beside them."""
        assert self._places[slot] < 0, "the slot has a row"
        if not self._free:
            self._grow(logits)
        place = self._places[slot] = self._free.pop()
        return self.table[place].zero_()

    def drop(self, slot: int) -> None:
        """The slot wants none any more; a no-op where it has none."""
        if self._places[slot] >= 0:
            self._free.append(int(self._places[slot]))
            self._places[slot] = -1

    def take(self, slots: Longs) -> Tensor:
        """The rows of these slots, copied.  # [slots, vocab]"""
        return self.table[torch.from_numpy(self.places(slots)).to(self.table.device)]

    def _grow(self, logits: Tensor) -> None:
        old = 0 if self._table is None else len(self._table)
        shape = max(2 * old, 4), logits.shape[-1]
        table = torch.zeros(shape, dtype=self._dtype, device=logits.device)
        if self._table is not None:
            table[:old] = self._table
        self._table = table
        self._free += range(len(table) - 1, old - 1, -1)
