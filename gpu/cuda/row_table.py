"""A table on a device that grows with the rows that are asked for."""

import torch
from torch import Tensor


class RowTable:
    """Rows of the vocabulary's width; which slot has which is known to the host."""

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
