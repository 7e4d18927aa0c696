"""Changes: what a step changes in the tables by slot, collected on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...messages import Ints
from ..kernels.row_updates import FIELDS, PIECE


@dataclass(frozen=True, slots=True)
class TableShape:
    """What may be written into a table."""

    name: str
    lines: int
    words: int  # of 32 bits in a line
    least: int = -(2**31)
    most: int = 2**31 - 1  # of any word


class Changes:
    """Stretches of words for the tables of a device, in updates of up to PIECE words.

    Everything is looked at before a kernel sees it: what a GPU writes out of bounds breaks it for
    good. Two writes to one word must agree, since they happen in no order.
    """

    def __init__(self, tables: Sequence[TableShape]) -> None:
        self._tables = tables
        self._updates: list[Ints] = []  # each [updates, FIELDS]
        self._values: list[Ints] = []
        self._count = 0  # of values

    def write(self, table: int, line: int, start: int, values: Ints) -> None:
        """Words for a line of a table, from `start` on. Raises IndexError or ValueError."""
        count = len(values)
        self._require(table, np.array([line]), np.array([start]), np.array([start + count]))
        self._require_values(table, values)
        firsts = np.arange(0, count, PIECE, dtype=np.int32)
        updates = np.empty((len(firsts), FIELDS), dtype=np.int32)
        updates[:, 0], updates[:, 1] = table, line
        updates[:, 2], updates[:, 3] = start + firsts, np.minimum(count - firsts, PIECE)
        updates[:, 4] = self._count + firsts
        self._add(updates, values)

    def write_each(
        self, table: int, lines: NDArray[np.integer], starts: NDArray[np.integer], values: Ints
    ) -> None:
        """A word for each of these places. Raises as `write` does."""
        self._require(table, lines, starts, starts + 1)
        self._require_values(table, values)
        updates = np.empty((len(lines), FIELDS), dtype=np.int32)
        updates[:, 0], updates[:, 1], updates[:, 2], updates[:, 3] = table, lines, starts, 1
        updates[:, 4] = self._count + np.arange(len(lines))
        self._add(updates, values)

    def columns(self) -> tuple[Ints, Ints]:
        """Updates [updates, FIELDS] and the values [words] that they write."""
        if not self._updates:
            return np.zeros((0, FIELDS), dtype=np.int32), np.zeros(0, dtype=np.int32)
        return np.concatenate(self._updates), np.concatenate(self._values)

    def _add(self, updates: Ints, values: Ints) -> None:
        self._updates.append(updates)
        self._values.append(values)
        self._count += len(values)

    def _require(
        self,
        table: int,
        lines: NDArray[np.integer],
        starts: NDArray[np.integer],
        ends: NDArray[np.integer],
    ) -> None:
        shape = self._tables[table]
        inside = (lines >= 0) & (lines < shape.lines) & (starts >= 0) & (ends <= shape.words)
        if not inside.all():
            bad = int(inside.argmin())
            raise IndexError(
                f"words {int(starts[bad])} to {int(ends[bad])} of line {int(lines[bad])} lie "
                f"outside {shape.name}, which has {shape.lines} lines of {shape.words}"
            )

    def _require_values(self, table: int, values: Ints) -> None:
        shape = self._tables[table]
        if len(values) and not (shape.least <= values.min() and values.max() <= shape.most):
            raise ValueError(f"{shape.name} holds {shape.least} to {shape.most}; other was given")
