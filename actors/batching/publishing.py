"""Which full blocks become findable now (rule 17)."""

import numpy as np

from ...kvpool import BlockHasher, token_bytes
from ...messages import Ints
from .block_client import BlockClient
from .ledger import Ledger


class Publisher:
    """Publishes blocks whose tokens are confirmed and whose writing step is certain.

    A hash is computed once per block; those of a prompt come with the request.
    """

    def __init__(self, ledger: Ledger, hasher: BlockHasher, blocks: BlockClient) -> None:
        self._ledger = ledger
        self._hasher = hasher
        self._blocks = blocks
        self._offsets = np.arange(hasher.block_size, dtype=np.int32)

    def publish(self, slots: Ints, reach: Ints, step: int) -> None:
        """Publish what has become full in these slots; completing `step` commits it.

        `reach` is how far tokens are confirmed and their KV is written by posted steps.
        """
        ledger, size = self._ledger, self._hasher.block_size
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
        tokens = self._tokens(slots, indices)
        self._blocks.publish(step, slots, indices, self._hashes(slots, indices, tokens), tokens)

    def _tokens(self, slots: Ints, indices: Ints) -> list[bytes]:
        """The tokens of each block, gathered at once."""
        positions = indices[:, None] * self._hasher.block_size + self._offsets
        data = token_bytes(self._ledger.tokens[slots[:, None], positions])
        width = len(data) // len(slots)
        return [data[start : start + width] for start in range(0, len(data), width)]

    def _hashes(self, slots: Ints, indices: Ints, tokens: list[bytes]) -> list[bytes]:
        sequences, hash_block = self._ledger.sequences, self._hasher.block
        hashes: list[bytes] = []
        for slot, index, piece in zip(slots.tolist(), indices.tolist(), tokens, strict=True):
            sequence = sequences[slot]
            assert sequence is not None, "a vacant slot has nothing to publish"
            chain = sequence.block_hashes
            if index == len(chain):
                parent = chain[-1] if chain else self._hasher.root(sequence.request.cache_salt)
                chain.append(hash_block(parent, piece))
            hashes.append(chain[index])
        return hashes
