"""Which full blocks become findable now (rule 17)."""

import numpy as np

from ...kvpool import BlockHasher
from ...messages import Ints
from .block_client import BlockClient
from .ledger import Ledger
from .sequence import Sequence


class Publisher:
    """Publishes blocks whose tokens are confirmed and whose writing step is certain.

    A hash is computed once per block; those of a prompt come with the request.
    """

    def __init__(self, ledger: Ledger, hasher: BlockHasher, blocks: BlockClient) -> None:
        self._ledger = ledger
        self._hasher = hasher
        self._blocks = blocks

    def publish(self, slots: Ints, step: int) -> None:
        """Publish what has become full in these slots; completing `step` commits it."""
        ledger, size = self._ledger, self._hasher.block_size
        full = np.minimum(ledger.confirmed[slots], ledger.scheduled[slots]) // size
        behind = np.flatnonzero(full > ledger.published[slots])
        if not behind.size:
            return
        of_slot: list[int] = []
        indices: list[int] = []
        hashes: list[bytes] = []
        tokens: list[bytes] = []
        for slot, until in zip(slots[behind].tolist(), full[behind].tolist(), strict=True):
            sequence = ledger.sequences[slot]
            assert sequence is not None
            row = ledger.tokens[slot]
            for index in range(int(ledger.published[slot]), until):
                piece = row[index * size : (index + 1) * size].tobytes()
                of_slot.append(slot)
                indices.append(index)
                hashes.append(self._hash(sequence, index, piece))
                tokens.append(piece)
        ledger.published[slots[behind]] = full[behind]
        self._blocks.publish(step, of_slot, indices, hashes, tokens)

    def _hash(self, sequence: Sequence, index: int, tokens: bytes) -> bytes:
        hashes = sequence.block_hashes
        if index == len(hashes):
            parent = hashes[-1] if hashes else self._hasher.root(sequence.request.cache_salt)
            hashes.append(self._hasher.block(parent, tokens))
        return hashes[index]
