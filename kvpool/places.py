"""BlockPlaces: where every block is, and who refers to it.

        blank ── taken ────► held (ref ≥ 1) ── released ─► due ── its fence is done ──► free
          ▲                     ▲                           │                             │
          └── evicted ──────────┴────── found by content ───┴──────────────── cached ◄────┘

Rules 2, 7 and 15 to 18 of docs/rules.md.
"""

from collections.abc import Iterable, Sequence

from ..messages import FullBlocks
from .cache import BlockCache
from .host import HostTier
from .tables import BlockTables
from .tails import Tails


class BlockPlaces:
    """The ledger of blocks: block tables by slot, what is free, what is due, and what is findable.

    Its moves keep every block in exactly one place; who may have one is decided in the pool.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        *,
        host: HostTier | None,
        explains: bool,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._done = 0
        self._cache = BlockCache(num_blocks, block_size, explains=explains)
        self._free = self._cache.free
        self._holders = BlockTables(num_blocks, num_slots)
        self._tables, self._refs = self._holders.tables, self._holders.refs
        self._due = self._holders.due
        self._roots = [b""] * num_slots  # what stands before the first block of each table
        self.host = host

    # Facts

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    @property
    def num_free(self) -> int:
        """Blocks that can be given out now, cached ones included."""
        return len(self._free)

    @property
    def num_due(self) -> int:
        return len(self._due)

    @property
    def due(self) -> tuple[int, ...]:
        """Released blocks that a step in flight still mentions, in the order of release."""
        return tuple(self._due)

    @property
    def num_held(self) -> int:
        """Blocks that sequences refer to."""
        return self.num_blocks - self.num_free - self.num_due

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by their content."""
        return len(self._cache)

    @property
    def next_fence(self) -> int | None:
        """The earliest step whose completion frees something; commits need no message of their
        own, they come with the next question."""
        if self.host is None:
            return self._due.next_fence
        fences = (self._due.next_fence, self.host.next_fence)
        return min((fence for fence in fences if fence is not None), default=None)

    def _left_after(self, found: Sequence[int]) -> tuple[int, int]:
        """Free and due blocks that remain once the found ones are in use."""
        if not found:
            return self.num_free, self.num_due
        due = self._due.count(found)
        unheld = [self._refs[block] for block in found].count(0)
        return self.num_free - (unheld - due), self.num_due - due

    def is_free(self, block: int) -> bool:
        """Whether the block could be given out now."""
        return block in self._free

    def is_findable(self, block: int) -> bool:
        """Whether it is found by its content."""
        return self._cache.is_findable(block)

    def place_of(self, block: int) -> str:
        """Where the block is: held, due, blank, cached or pinned."""
        if self._refs[block]:
            return "held"
        return "due" if block in self._due else self._free.place_of(block)

    @property
    def referred(self) -> set[int]:
        """The blocks that sequences refer to."""
        return self._holders.referred

    def table(self, slot: int) -> tuple[int, ...]:
        return tuple(self._tables[slot])

    def rehash(self) -> None:
        """Its state comes from another process."""
        self._cache.rehash()

    # Moves

    def _settle(self, done: int) -> None:
        assert done >= self._done, "steps do not become undone"
        self._done = done
        self._cache.commit(done)
        if self.host is not None:
            self.host.settle(done)
        if self._due:
            self._cache.give_back(self._due.pop_until(done))

    def _append(self, slot: int, count: int) -> list[int]:
        blocks = self._holders.hold(self._cache.take(count))
        self._tables[slot] += blocks
        return blocks

    def _release(self, slot: int, fence: int) -> None:
        self._holders.drop(self._tables[slot], 0, fence)
        if self.host is not None:
            self.host.release(slot, fence)

    def _cut(self, cuts: dict[int, int], tails: Tails) -> None:
        """Take the tails of these slots, down to what each keeps; save them where that pays."""
        for slot, kept in cuts.items():
            table, fence = self._tables[slot], tails.fences[slot]
            tails.kept[slot] = kept
            if self.host is not None:
                lost = table[kept : tails.tokens[slot] // self.block_size]
                num_alone = sum(self._refs[block] == 1 for block in lost)
                hosts = self.host.save(slot, kept, lost, num_alone, fence)
                fence = tails.save(slot, lost[: len(hosts)], hosts)
            self._holders.drop(table, kept, fence)
        self._settle(self._done)

    def _publish(self, full: FullBlocks) -> None:
        tables, roots = self._tables, self._roots
        rows: list[tuple[int | bytes, list[int]]] = []
        columns = (full.slots.tolist(), full.firsts.tolist(), full.counts.tolist())
        for slot, first, count in zip(*columns, strict=True):
            table = tables[slot]
            previous = table[first - 1] if first else roots[slot]
            rows.append((previous, table[first : first + count]))
        self._cache.publish(full.step, rows, full.token_ids)

    # Invariants

    def check(self) -> None:
        """Assert that every block is in exactly one place and every count is right."""
        self._holders.check(self._done)
        held = [block for block in range(self.num_blocks) if self._refs[block]]
        free = self._free
        places: list[Iterable[int]] = [free.blank, free.cached, free.pinned, self._due, held]
        everywhere = sorted(block for place in places for block in place)
        assert everywhere == list(range(self.num_blocks)), "a block is lost or in two places"
        self._cache.check()
        if self.host is not None:
            self.host.check(self._tables)
