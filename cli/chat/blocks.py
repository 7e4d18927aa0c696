"""Markdown as it grows: which lines are complete, and how they look in colour.

Pure. A line of prose is a block of its own. Code is a block from fence to fence; a long one is
given away in pieces, since what has left the screen cannot be coloured any more.
"""

import re
from collections.abc import Callable

from . import highlight

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*")


class Blocks:
    """Takes complete lines, and gives the lines of a block in colour when it is complete.

    `is_full` tells whether so many lines should not wait any longer for the end of their block.
    """

    def __init__(self, is_full: Callable[[list[str]], bool]) -> None:
        self._is_full = is_full
        self._fence = ""  # what opened the block of code
        self._language = ""
        self._code: list[str] = []  # its lines so far, the fence first; empty outside
        self.waiting: list[str] = []  # complete lines that were not given away yet

    def add(self, line: str) -> list[str] | None:
        """One more complete line; the lines that wait, coloured, if that completes a block."""
        match = _FENCE.fullmatch(line)
        self.waiting.append(line)
        if not self._code and match is None:
            return self._given([highlight.prose(line)])
        if not self._code and match is not None:
            self._fence, self._language = match[1], match[2]
        elif match is not None and match[1].startswith(self._fence) and not match[2]:
            return self._close(line)
        self._code.append(line)
        return self._given(self._coloured()) if self._is_full(self.waiting) else None

    def end(self, rest: str) -> list[str]:
        """The text has ended, with a line that was not complete."""
        coloured = self.add(rest)
        return self._given(self._coloured()) if coloured is None else coloured

    def _close(self, line: str) -> list[str]:
        lines = [*self._coloured(), highlight.styled(line, highlight.DIM)]
        self._code = []
        return self._given(lines)

    def _coloured(self) -> list[str]:
        """The block's lines; those given away before still say what the others mean."""
        inside = self._code[1:]
        text = highlight.code("\n".join(inside), self._language)
        return [
            highlight.styled(self._code[0], highlight.DIM),
            *(text.split("\n") if inside else ()),
        ]

    def _given(self, lines: list[str]) -> list[str]:
        """The last of these lines: as many as wait."""
        fresh = lines[len(lines) - len(self.waiting) :]
        self.waiting = []
        return fresh
