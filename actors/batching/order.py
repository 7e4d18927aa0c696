"""The one order of importance, over those that run and those that wait."""

from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np

from ...messages import Longs, seal
from .sequence import Sequence


class RunningOrder:
    """Running sequences' slots, the most important first."""

    def __init__(self) -> None:
        self._orders: list[tuple[int, int]] = []
        self._columns = np.zeros((2, 0), dtype=np.int64)
        self._slots, self._classes = self._columns

    def __len__(self) -> int:
        return len(self._orders)

    @property
    def slots(self) -> Longs:
        """The slots; the array is replaced, never changed, when the order changes."""
        return self._slots

    @property
    def classes(self) -> Longs:
        """The priority of each, parallel to `slots` and replaced like it."""
        return self._classes

    def __contains__(self, sequence: Sequence) -> bool:
        place = bisect_left(self._orders, sequence.order)
        return self._orders[place : place + 1] == [sequence.order]

    def add(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        place = bisect_left(self._orders, sequence.order)
        self._orders.insert(place, sequence.order)
        old = self._columns
        new = np.empty((2, len(self._orders)), dtype=np.int64)
        new[:, :place], new[:, place + 1 :] = old[:, :place], old[:, place:]
        new[0, place], new[1, place] = sequence.slot, sequence.priority
        self._replace(new)

    def remove(self, sequence: Sequence) -> None:
        place = bisect_left(self._orders, sequence.order)
        assert self._orders[place] == sequence.order
        del self._orders[place]
        old = self._columns
        new = np.empty((2, len(self._orders)), dtype=np.int64)
        new[:, :place], new[:, place:] = old[:, :place], old[:, place + 1 :]
        self._replace(new)

    def _replace(self, columns: Longs) -> None:
        self._columns = seal(columns)
        self._slots, self._classes = columns


class WaitingQueue:
    """Waiting sequences, the most important first."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    def snapshot(self) -> Iterator[Sequence]:
        """The sequences in order, whatever is added or removed meanwhile."""
        return iter(self._sequences.copy() if self._sequences else ())

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        place = bisect_left(self._sequences, sequence.order, key=_order)
        assert self._sequences[place] is sequence
        del self._sequences[place]


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
