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
    end: int | None = None  # words are from 0 to below this; None: they are anything


class Changes:
    """Stretches of words for the tables of a device, in updates of up to PIECE words.

    Everything is looked at before a kernel sees it: what a GPU writes out of bounds breaks it for
    good. Two writes to one word must agree, since they happen in no order.
    """

    def __init__(self, tables: Sequence[TableShape]) -> None:
        self._tables = tables
        self._updates: list[tuple[int, ...]] = []  # each as a kernel reads it
        self._single: list[Ints] = []  # each [updates, FIELDS], of a word an update
        self._values: list[Ints] = []
        self._count = 0  # of values

    def write(self, table: int, line: int, start: int, values: Ints) -> None:
        """Words for a line of a table, from `start` on. Raises IndexError or ValueError."""
        shape, count = self._tables[table], len(values)
        if not (0 <= line < shape.lines and start >= 0 and start + count <= shape.words):
            raise _outside(shape, line, start, count)
        _require_values(shape, values)
        for first in range(0, count, PIECE):
            length = min(count - first, PIECE)
            self._updates.append((table, line, start + first, length, self._count + first))
        self._add(values)

    def write_each(
        self, table: int, lines: NDArray[np.integer], starts: Ints, values: Ints
    ) -> None:
        """A word for each of these places. Raises as `write` does."""
        shape = self._tables[table]
        inside = (lines >= 0) & (lines < shape.lines) & (starts >= 0) & (starts < shape.words)
        if not np.logical_and.reduce(inside):
            bad = int(inside.argmin())
            raise _outside(shape, int(lines[bad]), int(starts[bad]), 1)
        _require_values(shape, values)
        updates = np.empty((len(lines), FIELDS), dtype=np.int32)
        updates[:, 0], updates[:, 1], updates[:, 2], updates[:, 3] = table, lines, starts, 1
        updates[:, 4] = np.arange(self._count, self._count + len(lines))
        self._single.append(updates)
        self._add(values)

    def columns(self) -> tuple[Ints, Ints]:
        """Updates [updates, FIELDS] and the values [words] that they write."""
        if not self._values:
            return _NO_UPDATES, _NO_VALUES
        updates = self._single
        if self._updates:
            updates = [np.array(self._updates, dtype=np.int32), *updates]
        return np.concatenate(updates or [_NO_UPDATES]), np.concatenate(self._values)

    def _add(self, values: Ints) -> None:
        self._values.append(values)
        self._count += len(values)


_NO_UPDATES: Ints = np.zeros((0, FIELDS), dtype=np.int32)
_NO_VALUES: Ints = np.zeros(0, dtype=np.int32)


def _outside(shape: TableShape, line: int, start: int, count: int) -> IndexError:
    return IndexError(
        f"words {start} to {start + count} of line {line} lie outside {shape.name}, which has "
        f"{shape.lines} lines of {shape.words}"
    )


def _require_values(shape: TableShape, values: Ints) -> None:
    # As unsigned numbers those below 0 are the largest.
    if shape.end is not None and len(values):
        most = int(np.maximum.reduce(values.view(np.uint32)))
        if most >= shape.end:
            raise ValueError(f"{shape.name} holds numbers from 0 to below {shape.end} only")
