"""Pins: prefixes that somebody wants to stay findable."""

from collections.abc import Iterable, Sequence

from .content import Before, Key
from .prefix import PrefixIndex


class Pins:
    """Which cached blocks are given away last, because a pin names their content.

    A pin names tokens and not blocks: what is not cached yet, or was lost and is computed again, is
    kept from then on. What follows from the pins and the index is derived anew when either changes
    where a pin looks.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._prefixes: dict[int, tuple[bytes, Sequence[bytes]]] = {}
        self._keys: frozenset[Key] = frozenset()  # of pinned content that is findable
        self._awaited: frozenset[Key] = frozenset()  # of that which would come next
        self._blocks: dict[int, None] = {}  # that hold it, each after what precedes it

    def __len__(self) -> int:
        return len(self._prefixes)

    def add(self, pin: int, root: bytes, pieces: Sequence[bytes]) -> None:
        assert pin not in self._prefixes, f"pin {pin} is there already"
        self._prefixes[pin] = root, pieces

    def remove(self, pin: int) -> None:
        """Let go of a pin; an unknown one is a no-op."""
        self._prefixes.pop(pin, None)

    def holds(self, block: int) -> bool:
        """Whether the content of this block is pinned."""
        return self._index.key(block) in self._keys

    def hold_any(self, blocks: Iterable[int]) -> bool:
        """Whether one of these blocks held pinned content when the pins last looked."""
        return not self._blocks.keys().isdisjoint(blocks)

    def await_any(self, blocks: Iterable[int]) -> bool:
        """Whether one of these blocks, just published, holds what a pin waits for."""
        key = self._index.key
        return any(key(block) in self._awaited for block in blocks)

    def look_again(self) -> None:
        """Find what of the pinned prefixes is there."""
        keys: set[Key] = set()
        awaited: set[Key] = set()
        blocks: dict[int, None] = {}
        for root, pieces in self._prefixes.values():
            before: Before = root
            for piece in pieces:
                key = (before, piece)
                found = self._index.find(key)
                if found is None:
                    awaited.add(key)
                    break
                keys.add(key)
                block, before = found
                blocks[block] = None
        self._keys, self._awaited = frozenset(keys), frozenset(awaited)
        self._blocks = blocks

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that hold pinned content, each after what precedes it."""
        return tuple(self._blocks)

    def check(self) -> None:
        """Assert that looking again would find nothing else."""
        before = self._keys, self._awaited, self.blocks
        self.look_again()
        assert before == (self._keys, self._awaited, self.blocks), "a pin has missed a change"
