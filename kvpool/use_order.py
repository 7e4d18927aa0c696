"""Blocks in the order in which they were last used."""

import itertools
from collections import deque
from collections.abc import Iterator


class Row:
    """Blocks that came at once. Those from `start` on are still here, unless one has been taken
    out meanwhile: then another row is its own by now, or none."""

    __slots__ = ("blocks", "since_ns", "start")

    def __init__(self, blocks: list[int], since_ns: int) -> None:
        self.blocks = blocks
        self.since_ns = since_ns
        self.start = 0


class UseOrder:
    """A queue that any block may leave early.

    Blocks come and go by rows, a sequence's at once: that takes a third of the time, and a tenth
    of the memory, of an entry in an OrderedDict for each.
    """

    def __init__(self, num_blocks: int) -> None:
        self._rows: deque[Row] = deque()
        self._row_of: list[Row | None] = [None] * num_blocks
        self._num_here = 0
        self._num_entries = 0  # in all rows, those included that have left

    def __len__(self) -> int:
        return self._num_here

    def __contains__(self, block: int) -> bool:
        return self._row_of[block] is not None

    def __iter__(self) -> Iterator[int]:
        """The one that has waited longest first."""
        return itertools.chain.from_iterable(map(self._here, self._rows))

    def add(self, blocks: list[int], now_ns: int) -> None:
        """These were used until now, the last of them last."""
        if not blocks:
            return
        row, row_of = Row(blocks, now_ns), self._row_of
        for block in blocks:
            row_of[block] = row
        self._rows.append(row)
        self._num_here += len(blocks)
        self._num_entries += len(blocks)
        if self._num_entries > 2 * self._num_here + 64:
            self._tidy()

    def pop(self, most: int) -> list[int]:
        """The first ones leave: up to `most`."""
        popped: list[int] = []
        rows, row_of = self._rows, self._row_of
        while len(popped) < most and rows:
            row = rows[0]
            part = row.blocks[row.start : row.start + most - len(popped)]
            row.start += len(part)
            self._num_entries -= len(part)
            popped += [block for block in part if row_of[block] is row]
            if row.start == len(row.blocks):
                rows.popleft()
        for block in popped:
            row_of[block] = None
        self._num_here -= len(popped)
        return popped

    def take(self, block: int) -> None:
        """One that is here leaves, whatever its place."""
        assert self._row_of[block] is not None
        self._row_of[block] = None
        self._num_here -= 1

    def clear(self) -> None:
        """All leave."""
        self.__init__(len(self._row_of))  # type: ignore[misc]  # a fresh queue

    def unused_since(self, time_ns: int) -> list[int]:
        """Those that nobody has used since then or longer, the oldest first."""
        old = itertools.takewhile(lambda row: row.since_ns <= time_ns, self._rows)
        return list(itertools.chain.from_iterable(map(self._here, old)))

    @property
    def oldest_ns(self) -> int | None:
        """When the first one came; None if there is none."""
        return next((row.since_ns for row in self._rows if self._here(row)), None)

    def _here(self, row: Row) -> list[int]:
        return [block for block in row.blocks[row.start :] if self._row_of[block] is row]

    def _tidy(self) -> None:
        """Let go of the entries of those that have left."""
        tidied: deque[Row] = deque()
        for row in self._rows:
            row.blocks, row.start = self._here(row), 0
            if row.blocks:
                tidied.append(row)
        self._rows = tidied
        self._num_entries = self._num_here
