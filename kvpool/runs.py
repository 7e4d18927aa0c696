"""Runs: contents that follow one another, kept as one thing."""

from typing import NamedTuple, TypeAlias

import numpy as np

from .content import TOKEN_BYTES, Before, Key

GONE = -1
PLACE_BITS = 32


class Run:
    """A row of contents, each after the one before it, and the blocks that they are found in.

    A content's id is the run's number and its place, so a run may grow while it is whole. Once a
    content is lost it never grows again, so that no id ever names two contents.
    """

    __slots__ = ("_width", "before", "blocks", "first", "is_whole", "tokens")

    def __init__(
        self, number: int, before: Before, tokens: bytes, blocks: list[int], block_size: int
    ) -> None:
        self.before = before  # what precedes the first content
        self.first = number << PLACE_BITS  # the id of the first content
        self.tokens = tokens  # of all contents; there may be some more of those lost at the end
        self.blocks = blocks  # by place; GONE where the content cannot be found any more
        self.is_whole = True
        self._width = block_size * TOKEN_BYTES

    def key(self, place: int) -> Key:
        """What a content that is not lost is known by."""
        start = place * self._width
        before = self.first + place - 1 if place else self.before
        return before, self.tokens[start : start + self._width]

    def cut(self) -> None:
        """Contents were lost; the tokens of a lost end are let go of by halves."""
        self.is_whole = False
        blocks = self.blocks
        while blocks and blocks[-1] == GONE:
            blocks.pop()
        length = len(blocks) * self._width
        if 2 * length <= len(self.tokens):
            self.tokens = self.tokens[:length]

    def alike(self, place: int, tokens: bytes, at: int = 0) -> int:
        """How many contents from `place` on can be found and hold what stands in `tokens` from
        byte `at` on."""
        start = place * self._width
        length = min(len(self.blocks) * self._width - start, len(tokens) - at)
        if length <= 0:
            return 0
        mine, theirs = self.tokens[start : start + length], tokens[at : at + length]
        if mine != theirs:
            length = _first_difference(mine, theirs)
        count = length // self._width
        if self.is_whole:
            return count
        there = self.blocks[place : place + count]
        return there.index(GONE) if GONE in there else count


class Place(NamedTuple):
    """One content of a run."""

    run: Run
    offset: int

    @property
    def content(self) -> int:
        """Its id, which is never reused."""
        return self.run.first + self.offset


Stretch: TypeAlias = tuple[Run, int, int]  # (run, first place, contents)


def _first_difference(left: bytes, right: bytes) -> int:
    """The first byte in which two different texts of one length differ."""
    differs = np.frombuffer(left, np.uint8) != np.frombuffer(right, np.uint8)
    return int(differs.argmax())
