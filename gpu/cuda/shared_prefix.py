"""SharedPrefix: which rows of a step read the same leading blocks, and are better off together.

The pool shares a block by giving its id to several sequences, so equal ids at the head of two block
tables are its report; nothing else says it. Rows that run on as they did cost a few comparisons of
whole columns; only those that came or went move in the tree.
"""

from dataclasses import dataclass

import numpy as np

from ...messages import StepPlan
from ...messages.arrays import Ints, Longs
from .prefix_tree import Node, PrefixTree

MOST_GROUPS = 16  # in one step: a grid that depends on no group must have room for all of them


@dataclass(frozen=True, slots=True)
class Savings:
    """What it saves in a layer to read shared blocks once, in bytes.

    A group of n rows that share b blocks reads them once instead of n times, (n - 1) b blocks less.
    Half of that counts: rows that run at the same time find part of what the others read in the
    L2 cache, which gives about twice as many bytes per second as the memory. For it every row
    writes and reads again the parts of the shared blocks, `row_bytes`; and the step takes one more
    launch in each layer, `launch_bytes`.

    Of Llama-3.1-8B in bfloat16 a block of 16 has 16 * 8 * 2 * 128 * 2 B = 64 KiB a layer. A row's
    parts in eight splits have 8 * 32 * (128 + 2) * 4 B = 130 KiB, written and read: 260 KiB. So 32
    rows that share 512 tokens save 31 * 32 * 64 KiB / 2 - 32 * 260 KiB = 23 MiB, and go together,
    since a launch takes 16. So do 8 rows that share 2,048 (26 MiB), but not 8 that share 512 (5).
    """

    block_bytes: int  # keys and values of a block in one layer
    row_bytes: int
    launch_bytes: int = 16 << 20  # what is read in 4 µs, at 4 TB/s

    @classmethod
    def of(
        cls,
        *,
        heads: int,
        kv_heads: int,
        dim: int,
        item_bytes: int,
        block_size: int,
        splits: int,
    ) -> "Savings":
        """Of layers of this shape, shared blocks split so often."""
        return cls(
            block_bytes=block_size * kv_heads * 2 * dim * item_bytes,
            row_bytes=2 * splits * heads * (dim + 2) * 4,
        )

    def gain(self, rows: int, blocks: int) -> int:
        """Bytes that a group saves before the launch is paid, or loses."""
        return (rows - 1) * blocks * self.block_bytes // 2 - rows * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows:
    """Groups of a step's rows, each cut into tiles: what `SharedRuns` is on the device."""

    lengths: Ints  # [rows] positions that a row shares, from the first one on
    order: Ints  # the rows that share any, group after group
    tiles: Ints  # [tiles, 4]: first place in the order, rows, slot of a row, positions shared

    def words(self, num_rows: int, num_tiles: int) -> Ints:
        """All of it in one piece, with room for so many rows and tiles; the rest shares nothing.

        # [2 * num_rows + 4 * num_tiles]: lengths, order, tiles
        """
        words = np.zeros(2 * num_rows + 4 * num_tiles, dtype=np.int32)
        words[: len(self.lengths)] = self.lengths
        words[num_rows : num_rows + len(self.order)] = self.order
        words[2 * num_rows : 2 * num_rows + self.tiles.size] = self.tiles.reshape(-1)
        return words


def most_tiles(num_rows: int, rows_per_tile: int) -> int:
    """Tiles that so many rows are cut into at most."""
    return num_rows // rows_per_tile + min(num_rows // 2, MOST_GROUPS)


class SharedPrefix:
    """Finds the groups of one step after the other."""

    def __init__(
        self,
        *,
        num_slots: int,
        max_blocks: int,
        block_size: int,
        rows_per_tile: int,
        savings: Savings,
    ) -> None:
        """A slot has up to `max_blocks` blocks."""
        self._block_size = block_size
        self._rows_per_tile = rows_per_tile
        self._savings = savings
        self._blocks: Ints = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._num_full: Ints = np.zeros(num_slots, dtype=np.int32)
        self._tree = PrefixTree(self._blocks, self._num_full, savings.gain)
        self._seen: tuple[Longs, Ints] | None = None  # slots and lengths
        self._found: SharedRows | None = None

    def apply(self, plan: StepPlan) -> None:
        """Take over the blocks that a plan brings, whether or not it is run."""
        for row in plan.new_rows:
            if row.slot in self._tree.slots:  # as the row that was there before
                self._tree.remove(row.slot)
            self._blocks[row.slot, : len(row.block_ids)] = row.block_ids
        if plan.new_rows:
            self._seen = None
        self._blocks[plan.block_slots, plan.block_indices] = plan.block_ids

    def find(self, plan: StepPlan) -> SharedRows | None:
        """The groups of a plan's rows of one token; None if reading blocks once gains nothing.

        The plan has been applied. What a group shares lies before the tokens of its rows.
        """
        if self._runs_on(plan):
            return self._found
        rows = np.flatnonzero(plan.lengths == 1)
        self._follow(plan.slots[rows], plan.starts[rows])
        groups = sorted(self._tree.groups(), key=lambda node: node.best, reverse=True)
        groups = groups[:MOST_GROUPS]
        saved = sum(node.best for node in groups)
        is_worth_it = saved > self._savings.launch_bytes
        self._found = self._grouped(groups, plan.slots, rows) if is_worth_it else None
        return self._found

    def _runs_on(self, plan: StepPlan) -> bool:
        """Whether these are the rows of the last time."""
        seen = self._seen
        self._seen = (plan.slots, plan.lengths)
        return (
            seen is not None
            and np.array_equal(plan.slots, seen[0])
            and np.array_equal(plan.lengths, seen[1])
        )

    def _follow(self, slots: Longs, starts: Ints) -> None:
        """Have exactly these slots in the tree."""
        wanted = slots.tolist()
        for slot in self._tree.slots - set(wanted):
            self._tree.remove(slot)
        self._num_full[slots] = starts // self._block_size
        for slot in wanted:
            if slot not in self._tree.slots:
                self._tree.insert(slot)

    def _grouped(self, groups: list[Node], slots: Longs, rows: Longs) -> SharedRows:
        row_of = dict(zip(slots[rows].tolist(), rows.tolist(), strict=True))
        lengths = np.zeros(len(slots), dtype=np.int32)
        order: list[int] = []
        tiles: list[tuple[int, int, int, int]] = []
        size = self._rows_per_tile
        for node in groups:
            members, shared = node.members, node.depth * self._block_size
            own = sorted(row_of[slot] for slot in members)
            tiles += [
                (len(order) + first, min(size, len(own) - first), members[0], shared)
                for first in range(0, len(own), size)
            ]
            order += own
            lengths[own] = shared
        return SharedRows(lengths, np.array(order, dtype=np.int32), np.array(tiles, dtype=np.int32))
