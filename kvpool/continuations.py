"""Which published contents follow the same content: asked where a prefix ends, to say how far the
closest of them goes on alike."""

from collections.abc import Sequence

import numpy as np

from ..messages import Ints
from .content import Before

NOTHING = 0  # no content's id, and so no hash of one


class Continuations:
    """By block, what it holds and the hash of what precedes it.

    They are looked for over all blocks at once, and only when somebody asks: publishing and
    reusing blocks keep no lists.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._befores = np.zeros(num_blocks, dtype=np.int64)
        self._tokens = np.zeros((num_blocks, block_size), dtype=np.int32)

    def hold(self, blocks: Sequence[int], token_ids: Ints) -> None:
        """These blocks hold `token_ids` [blocks * block_size]."""
        self._tokens[blocks] = token_ids.reshape(-1, self._tokens.shape[1])

    def add(self, blocks: Sequence[int], befores: Sequence[Before]) -> None:
        """These blocks are published, each after its content."""
        self._befores[blocks] = list(map(hash, befores))

    def remove(self, blocks: Sequence[int]) -> None:
        self._befores[blocks] = NOTHING

    def clear(self) -> None:
        """No block is published any more."""
        self._befores[:] = NOTHING

    def follows(self, block: int, before: Before) -> bool:
        return bool(self._befores[block] == hash(before))

    def most_in_common(self, before: Before, token_ids: Ints) -> int | None:
        """How many tokens [block_size] the closest continuation begins with alike, none of them
        being the same; None where nothing follows."""
        blocks = (self._befores == hash(before)).nonzero()[0]
        if not len(blocks):
            return None
        blocks = blocks[self._tokens[blocks, 0] == token_ids[0]]
        if not len(blocks):
            return 0
        differs = self._tokens[blocks] != token_ids
        return int(differs.argmax(axis=1).max())
