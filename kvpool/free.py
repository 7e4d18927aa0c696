"""Blocks nobody refers to: which is given out next, and which wait for a step."""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from .use_order import UseOrder


class FreeBlocks:
    """Free blocks in the order of reuse: blank ones first, then cached ones, the oldest first,
    and those with pinned content last.

    Cached blocks keep their content findable until they are reused. The order is that of calls,
    not of a clock, so it replays; `now_ns` is whatever time the pool was last told.
    """

    def __init__(self, num_blocks: int) -> None:
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack: low ids, adjacent, come first
        self._cached = UseOrder(num_blocks)
        self._pinned: OrderedDict[int, None] = OrderedDict()
        self.now_ns = 0

    def __len__(self) -> int:
        return len(self._blank) + len(self._cached) + len(self._pinned)

    def __contains__(self, block: int) -> bool:
        return block in self._cached or block in self._pinned or block in self._blank

    def place_of(self, block: int) -> str:
        """Of a free block: blank, cached or pinned."""
        if block in self._cached:
            return "cached"
        return "pinned" if block in self._pinned else "blank"

    def add_blank(self, blocks: Iterable[int]) -> None:
        self._blank += blocks

    def add_cached(self, blocks: list[int]) -> None:
        self._cached.add(blocks, self.now_ns)

    def add_pinned(self, blocks: list[int]) -> None:
        self._pinned.update(dict.fromkeys(blocks))

    def pop_blank(self, most: int) -> list[int]:
        """Up to `most` blank blocks, which are to be reused first."""
        if not most:
            return []
        blocks = self._blank[-most:]
        blocks.reverse()
        del self._blank[-most:]
        return blocks

    def pop_cached(self, count: int) -> list[int]:
        """The cached blocks to reuse next, pinned ones last. Raises KeyError if there are fewer."""
        blocks = self._cached.pop(count)
        blocks += [self._pinned.popitem(last=False)[0] for _ in range(count - len(blocks))]
        return blocks

    def take(self, block: int) -> None:
        """Remove a cached block that was found by its content."""
        if block in self._cached:
            self._cached.take(block)
        else:
            del self._pinned[block]

    def blank_again(self, block: int) -> None:
        """A cached block lost its content: it becomes the next to be reused."""
        if block in self._cached or block in self._pinned:
            self.take(block)
            self._blank.append(block)

    def blank_all(self) -> None:
        """Every cached block lost its content."""
        self._blank += [*self._cached, *self._pinned]
        self._cached.clear()
        self._pinned.clear()

    def pin_only(self, blocks: Sequence[int]) -> None:
        """Of the cached blocks exactly these are given away last, the last of them first."""
        wanted = set(blocks)
        self.unpin([block for block in self._pinned if block not in wanted])
        self.pin(blocks)

    def pin(self, blocks: Sequence[int]) -> None:
        """Those of these that are cached are given away last, the last of them first."""
        for block in reversed(blocks):
            if block in self._cached:
                self._cached.take(block)
                self.add_pinned([block])

    def unpin(self, blocks: Sequence[int]) -> None:
        """Those of these that were kept are cached like any other, as if used just now."""
        for block in blocks:
            if block in self._pinned:
                del self._pinned[block]
                self.add_cached([block])

    def unused_since(self, time_ns: int) -> list[int]:
        """Cached blocks that nobody has used since then or longer, the oldest first."""
        return self._cached.unused_since(time_ns)

    @property
    def blank(self) -> tuple[int, ...]:
        return tuple(self._blank)

    @property
    def pinned(self) -> tuple[int, ...]:
        return tuple(self._pinned)

    @property
    def cached(self) -> tuple[int, ...]:
        return tuple(self._cached)


class DueBlocks:
    """Released blocks that a step in flight still mentions, in a row for each step that frees some.

    There are as few rows as steps in flight, and a row comes and goes as a whole: a sequence of a
    hundred thousand tokens lets go of thousands of blocks in one turn.
    """

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, None]] = {}  # by fence, in the order of release; none empty

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __contains__(self, block: int) -> bool:
        return any(block in row for row in self._rows.values())

    def count(self, blocks: Sequence[int]) -> int:
        """How many of these are due."""
        return sum(block in row for row in self._rows.values() for block in blocks)

    def __iter__(self) -> Iterator[int]:
        """In the order in which they come free."""
        return itertools.chain.from_iterable(self._rows[fence] for fence in sorted(self._rows))

    def add(self, blocks: Iterable[int], fence: int) -> None:
        """These are free once step `fence` is done."""
        row = dict.fromkeys(blocks)
        if fence in self._rows:
            self._rows[fence].update(row)
        elif row:
            self._rows[fence] = row

    def take(self, block: int) -> int:
        """A due block was found by its content and is in use again; returns its fence."""
        fence = next(fence for fence, row in self._rows.items() if block in row)
        row = self._rows[fence]
        del row[block]
        if not row:
            del self._rows[fence]
        return fence

    def pop_until(self, done: int) -> list[int]:
        """The blocks whose fence has passed, in the order of fence and release."""
        passed = sorted(fence for fence in self._rows if fence <= done)
        return [block for fence in passed for block in self._rows.pop(fence)]

    @property
    def next_fence(self) -> int | None:
        return min(self._rows) if self._rows else None
