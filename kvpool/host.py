"""Host memory as a second tier: images of what victims lost (rule 21). Pure.

        free ── save ──► image (of a slot that waits) ── load, release ──► due ── its fence ──► free

An image holds whole blocks, and begins where the blocks end that its slot still holds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .free import DueBlocks


@dataclass(frozen=True, slots=True)
class SwapCosts:
    """What decides between moving a block to host memory and computing its tokens again."""

    block_s: float  # seconds to move a block, one way
    token_s: float  # seconds to compute a position


@dataclass(frozen=True, slots=True)
class _Image:
    first: int  # place in the slot's block table
    blocks: list[int]  # host blocks


class HostTier:
    """Which host block holds what, and when it may be reused."""

    def __init__(self, num_blocks: int, block_size: int, costs: SwapCosts) -> None:
        self.num_blocks = num_blocks
        self.blocks_moved = 0  # in either direction, since the start
        self._block_size = block_size
        self._costs = costs
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack
        self._due = DueBlocks()
        self._images: dict[int, _Image] = {}  # by slot

    def save(
        self, slot: int, first: int, blocks: Sequence[int], num_alone: int, fence: int
    ) -> list[int]:
        """Host blocks to copy the first of these device blocks to, all of them if there is room.

        They begin at place `first` of the slot's table and end where its image begins, if it has
        one. `num_alone` of them nobody else refers to. Nothing is saved where it costs more time
        than to compute what would be lost. An image that is not next to them any more is let go
        of; `fence` is the last step that mentions it.
        """
        image = self._images.get(slot)
        behind = [] if image is None else image.blocks
        count = min(len(blocks), len(self._free)) if self._pays(blocks, num_alone, behind) else 0
        if count < len(blocks):
            self.release(slot, fence)
            behind = []
        if not count:
            return []
        hosts = [self._free.pop() for _ in range(count)]
        self._images[slot] = _Image(first, hosts + behind)
        self.blocks_moved += count
        return hosts

    def load(self, slot: int, first: int, fence: int) -> list[int]:
        """The image's blocks from place `first` of the block table on, to be copied back by the
        step `fence`; the image is used up."""
        image = self._images.get(slot)
        if image is None:
            return []
        self.release(slot, fence)
        hosts = image.blocks[max(first - image.first, 0) :]
        self.blocks_moved += len(hosts)
        return hosts

    def release(self, slot: int, fence: int) -> None:
        """The slot's image, if it has one, is let go of once step `fence` is done."""
        image = self._images.pop(slot, None)
        if image is not None:
            self._due.add(reversed(image.blocks), fence)

    def settle(self, done: int) -> None:
        """Steps up to `done` have copied what they copy."""
        if self._due:
            self._free += self._due.pop_until(done)

    def end_of(self, slot: int) -> int:
        """The place in the block table where the slot's image ends; 0 without one."""
        image = self._images.get(slot)
        return 0 if image is None else image.first + len(image.blocks)

    @property
    def free(self) -> tuple[int, ...]:
        """Host blocks that could be written now."""
        return tuple(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Host blocks of images."""
        return self.num_blocks - len(self._free) - len(self._due)

    @property
    def next_fence(self) -> int | None:
        return self._due.next_fence

    def _pays(self, blocks: Sequence[int], num_alone: int, behind: Collection[int]) -> bool:
        """Both ways for these blocks and back for the image, against computing what nobody else
        has: of these blocks, and of the image, which would be lost with them."""
        moving = (2 * len(blocks) + len(behind)) * self._costs.block_s
        lost = (num_alone + len(behind)) * self._block_size
        return moving < lost * self._costs.token_s

    def check(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that every host block is in one place, and every image behind what is held."""
        images = [block for image in self._images.values() for block in image.blocks]
        everywhere = sorted([*self._free, *self._due, *images])
        assert everywhere == list(range(self.num_blocks)), "a host block is lost or in two places"
        for slot, image in self._images.items():
            assert image.first == len(held[slot]), "an image does not begin where blocks end"
            assert image.blocks, "an image is empty"
