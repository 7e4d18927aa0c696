"""The prefix index: which block holds the KV of which tokens after which prefix.

A tree of runs: what is published together, block after block, is one run, found by the content
before it and its first block's tokens. Every distinct published content has an id that is never
reused. What is compared are the tokens themselves, so no crafted or unlucky hash ever joins two
prompts. A long prompt takes as few steps to find or to publish as it has runs, not blocks.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ..messages import Ints, PrefixEnd
from .content import TOKEN_BYTES, Before, Key, token_bytes
from .history import PrefixHistory
from .runs import GONE, Place, Run, Stretch

MAX_RUN_BYTES = 2**11  # of tokens; growing copies them, so a longer run grows no further

Previous: TypeAlias = int | bytes
"""What a block follows: the block before it, or the root of a first one."""


class PrefixIndex:
    """Finds published blocks by their tokens and everything before them.

    Two blocks that hold the same content share its id, and only the first of them is found; the
    other is its twin. Without `explains` it keeps nothing of what was findable once.
    """

    def __init__(self, num_blocks: int, block_size: int, *, explains: bool = True) -> None:
        self._block_size = block_size
        self._width = block_size * TOKEN_BYTES
        self._runs: dict[Key, Run] = {}
        self._num_runs = 0  # since the start
        self._run: list[Run | None] = [None] * num_blocks  # of what the block holds, twins too
        self._place = [0] * num_blocks
        self._is_findable = bytearray(num_blocks)
        self._history = PrefixHistory(num_blocks, block_size) if explains else None
        self._uncommitted: deque[tuple[int, list[Stretch]]] = deque()  # by step

    def __len__(self) -> int:
        return self._is_findable.count(1)

    # What is found

    def is_findable(self, block: int) -> bool:
        return bool(self._is_findable[block])

    def is_held(self, block: int) -> bool:
        """Whether the block is known to hold published content, as the one found or as a twin."""
        return self._run[block] is not None

    def key(self, block: int) -> Key | None:
        """What the block is known by, if it can be found."""
        run = self._run[block]
        return run.key(self._place[block]) if run and self._is_findable[block] else None

    def find_after(self, previous: Previous, piece: bytes) -> int | None:
        """The block that holds this piece after a findable block, or after a root."""
        after = self._after(previous)
        place = None if after is None else self._find(after, piece)
        return None if place is None else place.run.blocks[place.offset]

    def content(self, block: int) -> int:
        """The id of what a findable block holds."""
        run = self._run[block]
        assert run is not None
        return run.first + self._place[block]

    def match(self, root: bytes, token_ids: Ints) -> list[int]:
        """The longest row of published blocks that hold these tokens from position 0."""
        found: list[int] = []
        for run, place, count in self._walk(root, token_bytes(token_ids)):
            found += run.blocks[place : place + count]
        return found

    def why_ended(
        self, root: bytes, token_ids: Ints, found: Sequence[int]
    ) -> tuple[PrefixEnd, int | None]:
        """Why a match found only these blocks of `token_ids`, and not the full one that follows;
        where that is new, also how many tokens the closest known continuation begins with alike."""
        assert self._history is not None, "nothing is kept to explain it from"
        before = self.content(found[-1]) if found else root
        return self._history.why_ended(root, before, token_ids, len(found), self._find)

    def _after(self, previous: Previous) -> Before | Place | None:
        """None where the content of the block before has been forgotten."""
        if isinstance(previous, bytes):
            return previous
        run = self._run[previous]
        return None if run is None else Place(run, self._place[previous])

    def _find(self, after: Before | Place, piece: bytes) -> Place | None:
        """The content that holds this piece after something."""
        for run, place, _ in self._walk(after, piece):
            return Place(run, place)
        return None

    def _walk(self, after: Before | Place, tokens: bytes) -> Iterator[Stretch]:
        """Where these tokens are published after something, as far as they are."""
        at, width = 0, self._width
        if isinstance(after, Place):
            run, place = after
            count = run.alike(place + 1, tokens)
            if count:
                yield run, place + 1, count
                at = count * width
            before: Before = after.content + count
        else:
            before = after
        while at < len(tokens):
            child = self._runs.get((before, tokens[at : at + width]))
            if child is None:
                return
            count = child.alike(0, tokens, at)
            yield child, 0, count
            at += count * width
            before = child.first + count - 1

    # What becomes findable

    def publish(
        self, step: int, rows: Sequence[tuple[Previous, list[int]]], token_ids: Ints
    ) -> list[int]:
        """Make blocks findable, which completing `step` commits; returns them. Each row is what
        precedes it and blocks that follow one another; `token_ids` [blocks * block_size] is what
        all of them hold.

        Nothing happens where the content before has been forgotten: it could never be reached.
        """
        tokens, at, width = token_bytes(token_ids), 0, self._width
        stretches: list[Stretch] = []
        published: list[int] = []
        for previous, blocks in rows:
            end = at + len(blocks) * width
            stretch = self._publish(previous, blocks, tokens[at:end])
            if stretch is not None:
                stretches.append(stretch)
                published += blocks[-stretch[2] :]  # those before them are twins
            at = end
        if stretches:
            self._uncommitted.append((step, stretches))
        if self._history is not None:
            is_all = len(published) * self._block_size == len(token_ids)
            held = published if is_all else [block for _, blocks in rows for block in blocks]
            self._history.hold(held, token_ids)
            self._history.add(published, stretches)
        return published

    def _publish(self, previous: Previous, blocks: list[int], tokens: bytes) -> Stretch | None:
        if isinstance(previous, int):
            grown, last = self._run[previous], self._place[previous]
            if (
                grown is not None
                and grown.is_whole
                and last == len(grown.blocks) - 1
                and len(grown.tokens) < MAX_RUN_BYTES
                and (grown.first + last, tokens[: self._width]) not in self._runs
            ):  # what is new follows the end of a run
                return self._grow(grown, blocks, tokens)
        after = self._after(previous)
        if after is None:
            return None
        num_twins = 0
        for run, place, count in self._walk(after, tokens):
            for offset, block in enumerate(blocks[num_twins : num_twins + count], place):
                self._run[block] = run
                self._place[block] = offset
            num_twins += count
            after = Place(run, place + count - 1)
        if num_twins == len(blocks):
            return None
        before = after.content if isinstance(after, Place) else after
        self._num_runs += 1
        run = Run(self._num_runs, before, b"", [], self._block_size)
        tokens = tokens[num_twins * self._width :]
        self._runs[before, tokens[: self._width]] = run
        return self._grow(run, blocks[num_twins:], tokens)

    def _grow(self, run: Run, blocks: list[int], tokens: bytes) -> Stretch:
        """What the blocks hold are the run's next contents."""
        place = len(run.blocks)
        run.tokens += tokens
        run.blocks += blocks
        runs, places, is_findable = self._run, self._place, self._is_findable
        for offset, block in enumerate(blocks, place):  # mostly one, at every block edge
            runs[block] = run
            places[block] = offset
            is_findable[block] = 1
        return run, place, len(blocks)

    def commit(self, done: int) -> None:
        """Steps up to `done` have written their blocks."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= done:
            uncommitted.popleft()

    # What is not found any more

    def part(self, blocks: list[int]) -> tuple[list[int], list[int]]:
        """Nobody refers to these any more: those that can be found, and those that cannot, which
        are blank from here on."""
        is_findable, runs = self._is_findable, self._run
        findable = [block for block in blocks if is_findable[block]]
        if len(findable) == len(blocks):
            return findable, []
        blank = [block for block in blocks if not is_findable[block]]
        for block in blank:
            runs[block] = None
        return findable, blank

    def forget(self, blocks: Sequence[int], why: PrefixEnd = PrefixEnd.EVICTED) -> None:
        """These blocks are about to hold something else, or are not to be found any more."""
        runs, places, is_findable = self._run, self._place, self._is_findable
        history, cut = self._history, list[Run]()
        for block in blocks:
            run, place = runs[block], places[block]
            runs[block] = None
            if run is None or not is_findable[block]:
                continue
            is_findable[block] = False
            run.blocks[place] = GONE
            if history is not None:
                history.remember(run.key(place), run.first + place, why)
            if place == 0:
                del self._runs[run.key(0)]
            if not cut or run is not cut[-1]:
                cut.append(run)
        for run in cut:
            run.cut()
        if history is not None:
            history.remove(blocks)

    def forget_all(self) -> None:
        """Forget every published block, in one go; of very many only the last are remembered."""
        if self._history is not None:
            self._history.reset(self._known())
        num_blocks = len(self._run)
        self._runs.clear()
        self._run = [None] * num_blocks
        self._is_findable = bytearray(num_blocks)
        self._uncommitted.clear()

    def _known(self) -> Iterator[tuple[Key, int]]:
        """Keys and ids of what can be found, the last ones first."""
        for run in reversed(self._runs.values()):
            for place in range(len(run.blocks) - 1, -1, -1):
                if run.blocks[place] != GONE:
                    yield run.key(place), run.first + place

    def forget_uncommitted(self) -> list[int]:
        """The steps that were to write these blocks failed: forget and return them."""
        blocks = [
            block
            for _, stretches in self._uncommitted
            for run, place, count in stretches
            for block in run.blocks[place : place + count]
            if block != GONE
        ]
        self._uncommitted.clear()
        self.forget(blocks, PrefixEnd.FAILED)
        return blocks

    # Invariants

    def rehash(self) -> None:
        """Its state comes from another process."""
        if self._history is not None:
            self._history.rehash(self.key, len(self._run))

    def check(self) -> None:
        """Assert that runs and blocks name each other."""
        for key, run in self._runs.items():
            assert run.blocks[0] != GONE, "a run is found whose first content is lost"
            assert run.key(0) == key
        for block, held in enumerate(self._run):
            if held is None:
                assert not self._is_findable[block]
                continue
            place = self._place[block]
            is_found = place < len(held.blocks) and held.blocks[place] == block
            assert is_found == self.is_findable(block), "a run knows other blocks"
            for index, other in enumerate(held.blocks):
                assert other == GONE or (self._run[other], self._place[other]) == (held, index)
        if self._history is not None:
            self._history.check(self.key, len(self._run))
