"""What the account of a missed prefix is given from: what was findable, and what follows what."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..messages import Ints, PrefixEnd
from .content import Before, Key, content_pieces, token_bytes
from .continuations import Continuations
from .forgotten import Find, Forgotten
from .runs import Stretch

MAX_FORGOTTEN = 2**15  # contents that are remembered at least, which takes about 10 MB


class PrefixHistory:
    """Hears what is published and forgotten, and says why a prefix was found no further.

    A pool whose Scheduler never asks does without.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._continuations = Continuations(num_blocks, block_size)
        self._forgotten = Forgotten(min(num_blocks, MAX_FORGOTTEN))

    def hold(self, blocks: Sequence[int], token_ids: Ints) -> None:
        """These blocks hold `token_ids` [blocks * block_size]."""
        self._continuations.hold(blocks, token_ids)

    def add(self, blocks: Sequence[int], stretches: Sequence[Stretch]) -> None:
        """These blocks are published, as the ends of runs."""
        if not blocks:
            return
        befores: list[Before] = []
        for run, place, count in stretches:
            content = run.first + place
            befores.append(content - 1 if place else run.before)
            if count > 1:
                befores += range(content, content + count - 1)
        self._continuations.add(blocks, befores)

    def remember(self, key: Key, content: int, why: PrefixEnd) -> None:
        """This content cannot be found any more."""
        self._forgotten.add(key, content, why)

    def remove(self, blocks: Sequence[int]) -> None:
        """These blocks are not published any more."""
        self._continuations.remove(blocks)

    def reset(self, known: Iterable[tuple[Key, int]]) -> None:
        """Nothing can be found any more; `known` are keys and contents, the last ones first."""
        last = [life for life, _ in zip(known, range(self._forgotten.most), strict=False)]
        for key, content in reversed(last):
            self._forgotten.add(key, content, PrefixEnd.RESET)
        self._continuations.clear()

    def why_ended(
        self, root: bytes, before: Before, token_ids: Ints, num_found: int, find: Find
    ) -> tuple[PrefixEnd, int | None]:
        """Why only `num_found` blocks of `token_ids` were found, of which the last holds `before`;
        where what follows is new, also how many tokens the closest known continuation begins with
        alike."""
        size = self._block_size
        missing = token_ids[num_found * size : (num_found + 1) * size]
        why = self._forgotten.why((before, token_bytes(missing)))
        if why is None and self._forgotten.follows(num_found):
            pieces = content_pieces(token_ids[: (num_found + 1) * size], size)
            why = self._forgotten.why_of_earlier_lives(root, pieces, find)
        if why is not None:
            return why, None
        return PrefixEnd.NEW, self._continuations.most_in_common(before, missing)

    def rehash(self, published: Callable[[int], Key | None], num_blocks: int) -> None:
        """What is published comes from another process, where bytes hash to other numbers."""
        keys = {block: key for block in range(num_blocks) if (key := published(block))}
        token_ids = np.frombuffer(b"".join(piece for _, piece in keys.values()), dtype="<i4")
        self._continuations.clear()
        self._continuations.hold(list(keys), token_ids)
        self._continuations.add(list(keys), [before for before, _ in keys.values()])

    def check(self, published: Callable[[int], Key | None], num_blocks: int) -> None:
        """Assert that what is published is known to follow what it follows."""
        for block in range(num_blocks):
            key = published(block)
            assert key is None or self._continuations.follows(block, key[0])
