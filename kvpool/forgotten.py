"""What was findable once: a bounded memory of forgotten content, and why it is gone."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..messages import PrefixEnd
from .content import Before, Key
from .runs import Place

Find: TypeAlias = Callable[[Before | Place, bytes], Place | None]
"""What is findable after something, and holds these tokens."""

MAX_LIVES = 4  # ids of one content that are followed
MAX_DEPTH = 1024  # blocks that are followed: it takes about a millisecond


class Forgotten:
    """Remembers at least the last `most` contents that were forgotten, at most twice as many.

    Two generations instead of one order: remembering costs one entry, and the older half is
    dropped at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._recent: dict[Key, tuple[int, PrefixEnd]] = {}
        self._older: dict[Key, tuple[int, PrefixEnd]] = {}

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def add(self, key: Key, content: int, why: PrefixEnd) -> None:
        self._recent[key] = content, why
        if len(self._recent) >= self.most:
            self._older, self._recent = self._recent, {}

    def follows(self, depth: int) -> bool:
        """Whether earlier lives of content are followed that deep, in blocks."""
        return len(self) > 0 and depth < MAX_DEPTH

    def why(self, key: Key) -> PrefixEnd | None:
        """Why this content cannot be found any more; None if it never could."""
        life = self._life(key)
        return None if life is None else life[1]

    def why_of_earlier_lives(
        self, root: bytes, pieces: Sequence[bytes], find: Find
    ) -> PrefixEnd | None:
        """The same of the last of `pieces`, from the root.

        Content that was forgotten and computed again has another id, and what once followed it is
        known by the old one: both are followed.
        """
        befores: list[Before | Place] = [root]
        why: PrefixEnd | None = None
        for piece in pieces:
            keys: list[Key] = [(_content(before), piece) for before in befores]
            lives = [life for life in map(self._life, keys) if life is not None]
            why = lives[0][1] if lives else None
            found = [place for before in befores if (place := find(before, piece)) is not None]
            contents: list[Before | Place] = [*found, *(content for content, _ in lives)]
            befores = contents[:MAX_LIVES]
        return why

    def _life(self, key: Key) -> tuple[int, PrefixEnd] | None:
        return self._recent.get(key) or self._older.get(key)


def _content(before: Before | Place) -> Before:
    return before.content if isinstance(before, Place) else before
