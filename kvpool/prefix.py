"""The prefix index: which block holds the KV of which tokens after which prefix.

A tree whose nodes are contents. Every distinct published content gets an id that is never reused,
and is found by the content before it and its own tokens. What is compared are the tokens
themselves, so no crafted or unlucky hash ever joins two prompts, and nothing is hashed but by the
dictionary (with the interpreter's own random key).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ..messages import Ints, PrefixEnd
from .content import Before, Key, content_pieces, token_bytes
from .continuations import Continuations
from .forgotten import Forgotten

MAX_FORGOTTEN = 2**15  # contents that are remembered at least, which takes about 10 MB

Published: TypeAlias = tuple[int, list[int], int]  # (step, blocks, content id of the first)


class PrefixIndex:
    """Finds published blocks by their tokens and everything before them.

    Two blocks that hold the same content share its id, and only the first of them is found.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._block_of: dict[Key, int] = {}
        self._key: list[Key | None] = [None] * num_blocks
        self._content: list[int | None] = [None] * num_blocks
        self._last_content = 0
        self._continuations = Continuations(num_blocks, block_size)
        self._forgotten = Forgotten(min(num_blocks, MAX_FORGOTTEN))
        self._uncommitted: deque[Published] = deque()

    def __len__(self) -> int:
        return len(self._block_of)

    def is_findable(self, block: int) -> bool:
        return self._key[block] is not None

    def key(self, block: int) -> Key | None:
        """What the block is found by, if it can be found."""
        return self._key[block]

    def find(self, key: Key) -> tuple[int, int] | None:
        """The block that is found by this, and its content id."""
        block = self._block_of.get(key)
        if block is None:
            return None
        content = self._content[block]
        assert content is not None
        return block, content

    def match(self, root: bytes, pieces: Iterable[bytes]) -> list[int]:
        """The longest run of published blocks that hold these tokens from position 0."""
        found: list[int] = []
        block_of, contents = self._block_of, self._content
        before: Before = root
        for piece in pieces:
            block = block_of.get((before, piece))
            if block is None:
                break
            found.append(block)
            content = contents[block]
            assert content is not None
            before = content
        return found

    def why_ended(
        self, root: bytes, token_ids: Ints, found: Sequence[int]
    ) -> tuple[PrefixEnd, int | None]:
        """Why a match found only these blocks of `token_ids`, and not the full one that follows;
        where that is new, also how many tokens the closest known continuation begins with alike."""
        before, size = self._content[found[-1]] if found else root, self._block_size
        assert before is not None
        missing = token_ids[len(found) * size : (len(found) + 1) * size]
        why = self._forgotten.why((before, token_bytes(missing)))
        if why is None and self._forgotten.follows(len(found)):
            pieces = content_pieces(token_ids[: (len(found) + 1) * size], size)
            why = self._forgotten.why_of_earlier_lives(root, pieces, self.find)
        if why is not None:
            return why, None
        return PrefixEnd.NEW, self._continuations.most_in_common(before, missing)

    def publish(
        self,
        step: int,
        blocks: Sequence[int],
        previous: Sequence[int | bytes],
        token_ids: Ints,
    ) -> None:
        """Make blocks findable, which completing `step` commits. Parallel columns, a block after
        those before it; `previous` are the blocks that precede, or the root before a first one,
        `token_ids` [blocks * block_size] what they hold.

        Nothing happens where the content before has been forgotten: it could never be reached.
        """
        block_of, keys, contents = self._block_of, self._key, self._content
        self._continuations.hold(blocks, token_ids)
        pieces = content_pieces(token_ids, self._block_size)
        first = content = self._last_content + 1
        found: list[int] = []
        befores: list[Before] = []
        for block, preceding, piece in zip(blocks, previous, pieces, strict=True):
            before = contents[preceding] if isinstance(preceding, int) else preceding
            if before is None:
                continue
            key = (before, piece)
            twin = block_of.get(key)
            if twin is not None:
                contents[block] = contents[twin]
                continue
            block_of[key], keys[block], contents[block] = block, key, content
            found.append(block)
            befores.append(before)
            content += 1
        if found:
            self._continuations.add(found, befores)
            self._last_content = content - 1
            self._uncommitted.append((step, found, first))

    def forget(self, blocks: Sequence[int], why: PrefixEnd = PrefixEnd.EVICTED) -> None:
        """These blocks are about to hold something else, or are not to be found any more."""
        block_of, keys, contents = self._block_of, self._key, self._content
        for block in blocks:
            key, content = keys[block], contents[block]
            if key is not None:
                assert content is not None
                del block_of[key]
                keys[block] = None
                self._forgotten.add(key, content, why)
            contents[block] = None
        self._continuations.remove(blocks)

    def forget_all(self) -> None:
        """Forget every published block, in one go; of very many only the last are remembered."""
        for key, block in list(self._block_of.items())[-self._forgotten.most :]:
            content = self._content[block]
            assert content is not None
            self._forgotten.add(key, content, PrefixEnd.RESET)
        self._block_of.clear()
        self._key = [None] * len(self._key)
        self._content = [None] * len(self._content)  # those of twins, too
        self._continuations.clear()
        self._uncommitted.clear()

    def commit(self, done: int) -> None:
        """Steps up to `done` have written their blocks."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= done:
            uncommitted.popleft()

    def forget_uncommitted(self) -> list[int]:
        """The steps that were to write these blocks failed: forget and return them."""
        blocks = [
            block
            for _, published, first in self._uncommitted
            for content, block in enumerate(published, first)
            if self._is(block, content)
        ]
        self._uncommitted.clear()
        self.forget(blocks, PrefixEnd.FAILED)
        return blocks

    def _is(self, block: int, content: int) -> bool:
        return self._key[block] is not None and self._content[block] == content

    def check(self) -> None:
        """Assert that keys and blocks name each other."""
        for key, block in self._block_of.items():
            assert self._key[block] == key
            assert self._content[block] is not None
            assert self._continuations.follows(block, key[0])
        assert sum(key is not None for key in self._key) == len(self._block_of)
