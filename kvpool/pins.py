"""Pins: prefixes that somebody wants to stay findable."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .content import Key
from .prefix import PrefixIndex

K = TypeVar("K")


@dataclass(slots=True, eq=False)
class _Prefix:
    """What one pin names, and what of it is there."""

    root: bytes
    pieces: Sequence[bytes]
    blocks: list[int] = field(default_factory=list)  # that hold its first pieces
    keys: list[Key] = field(default_factory=list)  # what each of them is found by
    awaits: Key | None = None  # what would come next, unless all is there


class Pins:
    """Which cached blocks are given away last, because a pin names their content.

    A pin names tokens and not blocks: what is not cached yet, or was lost and is computed again, is
    kept from then on. Where the index changes, only those pins look again that it concerns.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._prefixes: dict[int, _Prefix] = {}
        self._holders: dict[int, set[int]] = {}  # by block with pinned content, the pins
        self._waiting: dict[Key, set[int]] = {}  # by content that would come next, the pins

    def __len__(self) -> int:
        return len(self._prefixes)

    def add(self, pin: int, root: bytes, pieces: Sequence[bytes]) -> list[int]:
        """The blocks that hold it now."""
        assert pin not in self._prefixes, f"pin {pin} is there already"
        self._prefixes[pin] = _Prefix(root, pieces)
        return self._begin(pin)

    def remove(self, pin: int) -> list[int]:
        """Let go of a pin; the blocks that nobody pins any more, the last of it first. An unknown
        pin is a no-op."""
        prefix = self._prefixes.get(pin)
        if prefix is None:
            return []
        self._stop_waiting(pin, prefix)
        del self._prefixes[pin]
        return [block for block in reversed(prefix.blocks) if self._let_go(pin, block)]

    def holds(self, block: int) -> bool:
        """Whether the content of this block is pinned."""
        return block in self._holders

    def find_more(self, published: Iterable[int]) -> list[int]:
        """These blocks were just published: the blocks that hold what pins waited for."""
        found: list[int] = []
        for key in map(self._index.key, published):
            if key is not None and key in self._waiting:
                for pin in self._waiting.pop(key):
                    found += self._advance(pin)
        return found

    def lose(self, blocks: Iterable[int]) -> list[int]:
        """These blocks have lost their content: others that nobody pins any more, since what
        follows lost content is never found."""
        return [
            other
            for block in blocks
            for pin in self._holders.pop(block, ())
            for other in self._cut(pin, block)
        ]

    def look_again(self) -> None:
        """Find what of the pinned prefixes is there, whatever has happened."""
        self._holders.clear()
        self._waiting.clear()
        for pin, prefix in self._prefixes.items():
            prefix.blocks.clear()
            prefix.keys.clear()
            self._begin(pin)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that hold pinned content, each after what precedes it."""
        return tuple(self._holders)

    def _begin(self, pin: int) -> list[int]:
        prefix = self._prefixes[pin]
        prefix.awaits = (prefix.root, prefix.pieces[0]) if prefix.pieces else None
        return self._advance(pin)

    def _advance(self, pin: int) -> list[int]:
        """Go on from what the pin waits for, as far as it is there."""
        prefix, index = self._prefixes[pin], self._index
        blocks, pieces = prefix.blocks, prefix.pieces
        first = len(blocks)
        while prefix.awaits is not None:
            previous = blocks[-1] if blocks else prefix.root
            block = index.find_after(previous, pieces[len(blocks)])
            if block is None:
                self._waiting.setdefault(prefix.awaits, set()).add(pin)
                break
            self._holders.setdefault(block, set()).add(pin)
            blocks.append(block)
            prefix.keys.append(prefix.awaits)
            is_whole = len(blocks) == len(pieces)
            prefix.awaits = None if is_whole else (index.content(block), pieces[len(blocks)])
        return blocks[first:]

    def _cut(self, pin: int, block: int) -> list[int]:
        """The pin waits for what this block held."""
        prefix = self._prefixes[pin]
        self._stop_waiting(pin, prefix)
        place = prefix.blocks.index(block)
        behind = prefix.blocks[place + 1 :]
        prefix.awaits = prefix.keys[place]
        self._waiting.setdefault(prefix.awaits, set()).add(pin)
        del prefix.blocks[place:], prefix.keys[place:]
        return [other for other in behind if self._let_go(pin, other)]

    def _stop_waiting(self, pin: int, prefix: _Prefix) -> None:
        if prefix.awaits is not None:
            _remove(self._waiting, prefix.awaits, pin)

    def _let_go(self, pin: int, block: int) -> bool:
        """Whether nobody pins the block any more."""
        return _remove(self._holders, block, pin)

    def check(self) -> None:
        """Assert that looking again would find nothing else."""
        before = self._holders.copy(), self._waiting.copy()
        self.look_again()
        assert before == (self._holders, self._waiting), "a pin has missed a change"


def _remove(pins_of: dict[K, set[int]], place: K, pin: int) -> bool:
    """Whether it was the last pin of that place."""
    pins = pins_of.get(place)
    if pins is None:
        return False
    pins.discard(pin)
    if not pins:
        del pins_of[place]
    return not pins
