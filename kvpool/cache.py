"""BlockCache: what may be found in blocks, and which free block is given out next."""

from collections.abc import Sequence

from ..messages import Ints, PinPrefix, PrefixAccount, PrefixEnd
from .content import content_pieces
from .free import FreeBlocks
from .pins import Pins
from .prefix import PrefixIndex, Previous


class BlockCache:
    """The prefix index with its pins, and the free blocks in the order of reuse."""

    def __init__(self, num_blocks: int, block_size: int, *, explains: bool = True) -> None:
        self.free = FreeBlocks(num_blocks)
        self._block_size = block_size
        self._index = PrefixIndex(num_blocks, block_size, explains=explains)
        self._pins = Pins(self._index)

    def __len__(self) -> int:
        """Blocks that can be found by their content, whoever refers to them."""
        return len(self._index)

    def is_findable(self, block: int) -> bool:
        return self._index.is_findable(block)

    # Blocks come and go

    def take(self, count: int) -> list[int]:
        """Free blocks to be filled with something else."""
        blocks = self.free.pop_blank(count)
        if len(blocks) < count:
            evicted = self.free.pop_cached(count - len(blocks))
            self._index.forget(evicted)
            blocks += evicted
            if self._pins:
                self.free.unpin(self._pins.lose(evicted))
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        """Nobody refers to these any more; they keep what they hold."""
        cached, blank = self._index.part(blocks)
        self.free.add_blank(blank)
        if self._pins:
            self.free.add_pinned([block for block in cached if self._pins.holds(block)])
            cached = [block for block in cached if not self._pins.holds(block)]
        self.free.add_cached(cached)

    # What is found

    def match(self, root: bytes, token_ids: Ints) -> list[int]:
        """Blocks that hold a beginning; the last token is always computed, and never part of it."""
        return self._index.match(root, token_ids[: self._most(token_ids) * self._block_size])

    def account(self, root: bytes, token_ids: Ints, found: Sequence[int]) -> PrefixAccount:
        """Why no more than this was found."""
        most = self._most(token_ids)
        if len(found) >= most:
            return PrefixAccount(PrefixEnd.WHOLE if most else PrefixEnd.SHORT)
        end, alike = self._index.why_ended(root, token_ids, found)
        difference = None if alike is None else len(found) * self._block_size + alike
        return PrefixAccount(end, difference)

    def _most(self, token_ids: Ints) -> int:
        return (len(token_ids) - 1) // self._block_size

    def publish(
        self, step: int, rows: Sequence[tuple[Previous, list[int]]], token_ids: Ints
    ) -> None:
        """Make blocks findable; see PrefixIndex."""
        published = self._index.publish(step, rows, token_ids)
        if self._pins:
            self.free.pin(self._pins.find_more(published))

    def commit(self, done: int) -> None:
        """Steps up to `done` have written their blocks."""
        self._index.commit(done)

    # What is not found any more

    def forget_uncommitted(self, done: int) -> None:
        """Steps after `done` failed: what they were to write is not there."""
        self._index.commit(done)
        for block in self._index.forget_uncommitted():
            self.free.blank_again(block)
        if self._pins:
            self._pins.look_again()
            self.free.pin_only(self._pins.blocks)

    def forget_unused(self, unused_since_ns: int) -> None:
        """What nobody has used since then is too old."""
        blocks = self.free.unused_since(unused_since_ns)
        self._index.forget(blocks, PrefixEnd.EXPIRED)
        for block in blocks:
            self.free.blank_again(block)

    def forget_all(self) -> None:
        self._index.forget_all()
        self.free.blank_all()
        self._pins.look_again()

    # What is kept

    def pin(self, ask: PinPrefix) -> None:
        """Give these tokens' full blocks away last, those included that are not cached yet."""
        full = len(ask.token_ids) // self._block_size * self._block_size
        pieces = content_pieces(ask.token_ids[:full], self._block_size)
        self.free.pin(self._pins.add(ask.pin, ask.root, pieces))

    def unpin(self, pin: int, now_ns: int) -> None:
        """The content is cached like any other again, as if it had been used just now."""
        self.free.now_ns = now_ns
        self.free.unpin(self._pins.remove(pin))

    def rehash(self) -> None:
        """Its state comes from another process."""
        self._index.rehash()

    def check(self) -> None:
        """Assert that every free block is kept for what it holds."""
        free, index, pins = self.free, self._index, self._pins
        assert all(index.is_findable(block) for block in (*free.cached, *free.pinned))
        assert not any(map(index.is_held, free.blank)), "a blank block is known to hold something"
        assert all(map(pins.holds, free.pinned)), "a block is kept that nobody pins"
        assert not any(map(pins.holds, free.cached)), "a pinned block is not kept"
        pins.check()
        index.check()
