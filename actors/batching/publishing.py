"""Which full blocks become findable now (rule 17)."""

import numpy as np

from ...messages import FullBlocks, Ints, Longs, frozen_ints, frozen_longs, seal
from .block_client import BlockClient
from .ledger import Ledger


class Publisher:
    """Publishes blocks whose tokens are confirmed and whose writing step is certain."""

    def __init__(self, ledger: Ledger, block_size: int, blocks: BlockClient) -> None:
        self._ledger = ledger
        self._block_size = block_size
        self._blocks = blocks

    def publish(self, slots: Longs, reach: Ints, step: int) -> None:
        """Publish what has become full in these slots; see `take_full`."""
        full = self.take_full(slots, reach, step)
        if full is not None:
            self._blocks.publish(full)

    def publish_last(self, slot: int, step: int) -> None:
        """The same of a sequence that ends."""
        ledger = self._ledger
        full = self._take_row(
            slot, min(int(ledger.confirmed[slot]), int(ledger.scheduled[slot])), step
        )
        if full is not None:
            self._blocks.publish(full)

    def take_full(self, slots: Longs, reach: Ints, step: int) -> FullBlocks | None:
        """What has become full in these slots and is to be published, which completing `step`
        commits; `reach` is how far tokens are confirmed and their KV is written by posted steps.
        """
        if len(slots) == 1:
            return self._take_row(int(slots[0]), int(reach[0]), step)
        ledger = self._ledger
        filled: Ints = reach // self._block_size
        first = ledger.published[slots]
        behind = (filled > first).nonzero()[0]
        if not len(behind):
            return None
        if len(behind) < len(slots):
            slots, first, filled = slots[behind], first[behind], filled[behind]
        ledger.published[slots] = filled
        counts = filled - first
        rows, indices = slots, first
        if np.count_nonzero(counts > 1):
            ends = counts.cumsum(dtype=np.int32)
            indices = np.arange(ends[-1], dtype=np.int32)
            indices += (first - (ends - counts)).repeat(counts)
            rows = slots.repeat(counts)
        token_ids = seal(ledger.blocks[rows, indices]).reshape(-1)
        return FullBlocks(step, seal(slots), seal(first), seal(counts), token_ids)

    def _take_row(self, slot: int, reach: int, step: int) -> FullBlocks | None:
        """The same of one slot, without gathering."""
        ledger, size = self._ledger, self._block_size
        first, filled = int(ledger.published[slot]), reach // size
        if filled <= first:
            return None
        ledger.published[slot] = filled
        token_ids = ledger.tokens[slot, first * size : filled * size].copy()
        firsts, counts = frozen_ints((first,)), frozen_ints((filled - first,))
        return FullBlocks(step, frozen_longs((slot,)), firsts, counts, seal(token_ids))
