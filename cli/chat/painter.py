"""Shows an answer as it comes and colours what is complete, in place.

The terminal breaks the lines, so what is copied is what was said, and wide and joined characters
are never cut. Colouring writes the same characters once more over themselves: nothing is erased,
and where it is not certain where they are, they stay as they are.
"""

from collections.abc import Callable
from typing import TypeAlias

from ..terminal_size import Size
from .blocks import Blocks
from .height import height

Write: TypeAlias = Callable[[str], None]


class Painter:
    """One answer on a terminal that shows colours."""

    def __init__(self, write: Write, size: Callable[[], Size]) -> None:
        self._write = write
        self._size = size
        self._blocks = Blocks(self._is_full)
        self._begun_in = size()  # when the lines that wait began
        self._line = ""  # the last one, which is not complete
        self._is_displaced = False  # something else stands below what waits

    def show(self, piece: str) -> None:
        """Write what was said next."""
        first, *lines = piece.split("\n")
        self._extend(first)
        for line in lines:
            self._end_line()
            self._extend(line)

    def finish(self) -> None:
        """The answer is over, wherever it was."""
        shown = [*self._blocks.waiting, self._line]
        self._paint(shown, self._blocks.end(self._line))

    def displace(self) -> None:
        """Somebody else has written on the terminal: the lines that wait stay as they are."""
        self._is_displaced = True

    def _extend(self, text: str) -> None:
        if text:
            self._line += text
            self._write(text)

    def _end_line(self) -> None:
        shown = [*self._blocks.waiting, self._line]
        coloured = self._blocks.add(self._line)
        if coloured is not None:
            self._paint(shown, coloured)
        self._write("\n")
        self._line = ""
        if coloured is not None:
            self._begun_in = self._size()
            self._is_displaced = False

    def _paint(self, shown: list[str], coloured: list[str] | None) -> None:
        """Write lines again, in colour; the cursor is at the end of them, before and after."""
        size = self._size()
        if coloured is None or coloured == shown:
            return
        if self._is_displaced or size != self._begun_in:
            return
        heights = [height(line, size.columns) for line in shown]
        if None in heights:
            return
        up = sum(rows or 0 for rows in heights) - 1
        if up < size.rows:
            move = f"\x1b[{up}A" if up else ""
            self._write(f"\r{move}" + "\n".join(coloured))

    def _is_full(self, lines: list[str]) -> bool:
        size = self._begun_in
        return sum(height(line, size.columns) or 1 for line in lines) >= size.rows // 2
