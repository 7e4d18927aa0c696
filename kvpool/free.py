"""Blocks nobody refers to: which is given out next, and which wait for a step."""

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence


class FreeBlocks:
    """Free blocks in the order of reuse: blank ones first, then cached ones, the oldest first,
    and those with pinned content last.

    Cached blocks keep their content findable until they are reused. The order is that of calls,
    not of a clock, so it replays; `now_ns` is whatever time the pool was last told.
    """

    def __init__(self, num_blocks: int) -> None:
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack: low ids, adjacent, come first
        self._cached: OrderedDict[int, int] = OrderedDict()  # unused since, which only grows
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

    def add_blank(self, block: int) -> None:
        self._blank.append(block)

    def add_cached(self, block: int) -> None:
        self._cached[block] = self.now_ns

    def add_pinned(self, block: int) -> None:
        self._pinned[block] = None

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
        num_others = min(count, len(self._cached))
        blocks = [self._cached.popitem(last=False)[0] for _ in range(num_others)]
        blocks += [self._pinned.popitem(last=False)[0] for _ in range(count - num_others)]
        return blocks

    def take(self, block: int) -> None:
        """Remove a cached block that was found by its content."""
        del (self._cached if block in self._cached else self._pinned)[block]

    def blank_again(self, block: int) -> None:
        """A cached block lost its content: it becomes the next to be reused."""
        for cached in (self._cached, self._pinned):
            if block in cached:
                del cached[block]
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
                del self._cached[block]
                self.add_pinned(block)

    def unpin(self, blocks: Sequence[int]) -> None:
        """Those of these that were kept are cached like any other, as if used just now."""
        for block in blocks:
            if block in self._pinned:
                del self._pinned[block]
                self.add_cached(block)

    def unused_since(self, time_ns: int) -> list[int]:
        """Cached blocks that nobody has used since then or longer, the oldest first."""
        is_old = itertools.takewhile(lambda cached: cached[1] <= time_ns, self._cached.items())
        return [block for block, _ in is_old]

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
    """Released blocks that a step in flight still mentions, by the step that frees them.

    There are as many fences as steps in flight, so blocks are kept in a row for each: a sequence
    of a hundred thousand tokens lets go of thousands of blocks in one turn.
    """

    def __init__(self) -> None:
        self._fence_of: dict[int, int] = {}
        self._rows: dict[int, list[int]] = {}  # by fence, in the order of release, lazily purged

    def __len__(self) -> int:
        return len(self._fence_of)

    def __contains__(self, block: int) -> bool:
        return block in self._fence_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._fence_of)

    def add(self, block: int, fence: int) -> None:
        self._fence_of[block] = fence
        row = self._rows.get(fence)
        if row is None:
            self._rows[fence] = [block]
        else:
            row.append(block)

    def take(self, block: int) -> None:
        """A due block was found by its content and is in use again."""
        del self._fence_of[block]

    def pop_until(self, done: int) -> list[int]:
        """The blocks whose fence has passed, in the order of fence and release."""
        freed: list[int] = []
        fence_of = self._fence_of
        for fence in sorted(self._rows):
            if fence > done:
                break
            for block in self._rows.pop(fence):
                if fence_of.get(block) == fence:  # not in use again, nor due later
                    del fence_of[block]
                    freed.append(block)
        return freed

    @property
    def next_fence(self) -> int | None:
        for fence in sorted(self._rows):
            row = self._rows[fence]
            alive = next((i for i, b in enumerate(row) if self._fence_of.get(b) == fence), None)
            if alive is not None:
                del row[:alive]
                return fence
            del self._rows[fence]
        return None
