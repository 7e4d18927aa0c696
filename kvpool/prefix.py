"""The prefix index: which block holds the KV of which tokens after which prefix.

A hit is believed only when depth, tokens and parent agree, so a collision of hashes (by chance or
by a weak hash function) never joins two prompts.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from .hashing import BlockHash

ROOT = 0  # the content id before a first block


class PrefixIndex:
    """Finds published blocks by chained hashes.

    Every distinct published content gets an id that is never reused. Two blocks that hold the
    same content share it, and only the first of them is found by its hash.
    """

    def __init__(self, num_blocks: int) -> None:
        self._block_of: dict[BlockHash, int] = {}
        self._hash: list[BlockHash | None] = [None] * num_blocks
        self._tokens: list[bytes] = [b""] * num_blocks
        self._parent: list[int] = [ROOT] * num_blocks  # content id of the block before
        self._content: list[int | None] = [None] * num_blocks
        self._last_content = ROOT
        self._uncommitted: deque[tuple[int, int, int]] = deque()  # (step, block, content id)

    def __len__(self) -> int:
        return len(self._block_of)

    def is_findable(self, block: int) -> bool:
        return self._hash[block] is not None

    def match(self, hashes: Iterable[BlockHash], tokens: Iterator[bytes]) -> list[int]:
        """The longest run of published blocks that hold these tokens from position 0; tokens are
        taken only for blocks whose hash is known, and end the search where they end."""
        found: list[int] = []
        parent = ROOT
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None or not self._holds(block, parent, next(tokens, b"")):
                break
            found.append(block)
            content = self._content[block]
            assert content is not None
            parent = content
        return found

    def _holds(self, block: int, parent: int, tokens: bytes) -> bool:
        return self._parent[block] == parent and self._tokens[block] == tokens

    def publish(
        self, block: int, before: int | None, block_hash: BlockHash, tokens: bytes, step: int
    ) -> None:
        """Make a block findable; `before` is the block that precedes it in its sequence.

        Nothing happens when the content before it has been forgotten: it could never be reached.
        """
        parent = ROOT if before is None else self._content[before]
        if parent is None:
            return
        twin = self._block_of.get(block_hash)
        if twin is not None:
            if self._holds(twin, parent, tokens):
                self._content[block] = self._content[twin]
            return
        self._last_content += 1
        self._block_of[block_hash] = block
        self._hash[block], self._tokens[block] = block_hash, tokens
        self._parent[block], self._content[block] = parent, self._last_content
        self._uncommitted.append((step, block, self._last_content))

    def forget(self, block: int) -> None:
        """The block is about to hold something else."""
        block_hash = self._hash[block]
        if block_hash is not None:
            del self._block_of[block_hash]
            self._hash[block] = None
        self._content[block] = None

    def forget_all(self) -> list[int]:
        """Forget every published block and return them."""
        blocks = list(self._block_of.values())
        self._block_of.clear()
        self._uncommitted.clear()
        self._hash = [None] * len(self._hash)
        self._content = [None] * len(self._content)
        return blocks

    def commit(self, done: int) -> None:
        """Steps up to `done` have written their blocks."""
        while self._uncommitted and self._uncommitted[0][0] <= done:
            self._uncommitted.popleft()

    def forget_uncommitted(self) -> list[int]:
        """The steps that were to write these blocks failed: forget and return them."""
        blocks = [block for _, block, content in self._uncommitted if self._is(block, content)]
        self._uncommitted.clear()
        for block in blocks:
            self.forget(block)
        return blocks

    def _is(self, block: int, content: int) -> bool:
        return self._hash[block] is not None and self._content[block] == content

    def check(self) -> None:
        """Assert that hashes and blocks name each other."""
        for block_hash, block in self._block_of.items():
            assert self._hash[block] == block_hash
            assert self._content[block] is not None
        assert sum(h is not None for h in self._hash) == len(self._block_of)
