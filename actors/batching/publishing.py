"""Which full blocks become findable now (rule 17)."""

import numpy as np

from ...messages import Ints, seal
from .block_client import BlockClient
from .ledger import Ledger


class Publisher:
    """Publishes blocks whose tokens are confirmed and whose writing step is certain."""

    def __init__(self, ledger: Ledger, block_size: int, blocks: BlockClient) -> None:
        self._ledger = ledger
        self._block_size = block_size
        self._blocks = blocks
        self._offsets = np.arange(block_size, dtype=np.int32)

    def publish(self, slots: Ints, reach: Ints, step: int) -> None:
        """Publish what has become full in these slots; completing `step` commits it.

        `reach` is how far tokens are confirmed and their KV is written by posted steps.
        """
        ledger, size = self._ledger, self._block_size
        full: Ints = reach // size
        first = ledger.published[slots]
        behind = (full > first).nonzero()[0]
        if not behind.size:
            return
        slots, first, counts = slots[behind], first[behind], (full - first)[behind]
        ledger.published[slots] += counts
        ends = counts.cumsum(dtype=np.int32)
        indices: Ints = np.arange(ends[-1], dtype=np.int32)
        indices += (first - (ends - counts)).repeat(counts)
        slots = slots.repeat(counts)
        self._blocks.publish(step, slots, indices, self._tokens(slots, indices))

    def _tokens(self, slots: Ints, indices: Ints) -> Ints:
        """The tokens of all these blocks, one after the other."""
        positions = indices[:, None] * self._block_size + self._offsets
        return seal(self._ledger.tokens[slots[:, None], positions]).reshape(-1)
