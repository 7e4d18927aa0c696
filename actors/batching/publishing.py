"""Which full blocks become findable now (rule 17)."""

import numpy as np

from ...messages import FullBlocks, Ints, Longs, seal
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

    def take_full(self, slots: Longs, reach: Ints, step: int) -> FullBlocks | None:
        """What has become full in these slots and is to be published, which completing `step`
        commits; `reach` is how far tokens are confirmed and their KV is written by posted steps.
        """
        ledger = self._ledger
        filled: Ints = reach // self._block_size
        first = ledger.published[slots]
        behind = (filled > first).nonzero()[0]
        if not len(behind):
            return None
        if len(behind) < len(slots):
            slots, first, filled = slots[behind], first[behind], filled[behind]
        ledger.published[slots] = filled
        indices = first
        counts = filled - first
        if np.count_nonzero(counts > 1):
            ends = counts.cumsum(dtype=np.int32)
            indices = np.arange(ends[-1], dtype=np.int32)
            indices += (first - (ends - counts)).repeat(counts)
            slots = slots.repeat(counts)
        token_ids = seal(ledger.blocks[slots, indices]).reshape(-1)
        return FullBlocks(step, seal(slots), seal(indices), token_ids)
