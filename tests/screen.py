"""A terminal's screen, as xterm keeps it: enough of one to see what an answer looks like there."""

import re

from wcwidth import wcwidth

_PIECE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|(.)", re.DOTALL)
_JOINER = "\u200d"
TAB = 8


class Screen:
    """Cells of text and style. `joins`: an emoji of several parts is drawn as one."""

    def __init__(self, columns: int, rows: int, *, joins: bool = True) -> None:
        self.columns = columns
        self.num_rows = rows
        self._joins = joins
        self._lines: list[list[tuple[str, str]]] = [[]]  # all of them, those scrolled away, too
        self._is_broken: list[bool] = [False]  # a row went on in the next one
        self._row = self._column = 0
        self._style = ""
        self._before = ""

    def write(self, text: str) -> None:
        for numbers, command, character in _PIECE.findall(text):
            if command == "A":
                top = max(len(self._lines) - self.num_rows, 0)
                self._row = max(self._row - int(numbers or 1), top)
            elif command == "m":
                self._style = "" if numbers in ("", "0") else numbers
            else:
                assert character, f"what is {command}?"
                self._put(character)

    @property
    def copied(self) -> str:
        """What a user would copy: rows that only the edge broke are one line."""
        text = ""
        for cells, is_broken in zip(self._lines, self._is_broken, strict=True):
            text += "".join(character for character, _ in cells) + "\n" * (not is_broken)
        return text.removesuffix("\n")

    def style_of(self, part: str) -> set[str]:
        """The styles in which a text stands there."""
        cells = [cell for line in self._lines for cell in line]
        text = "".join(character for character, _ in cells)
        styles = [style for character, style in cells for _ in character]
        start = text.index(part)
        return set(styles[start : start + len(part)])

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
            self._column = 0
        elif character == "\t":
            stop = min((self._column // TAB + 1) * TAB, self.columns - 1)
            if stop > self._column:
                self._fill(self._column, "\t", stop - self._column)
        else:
            self._draw(character)
        self._before = character

    def _draw(self, character: str) -> None:
        width = max(wcwidth(character), 0)
        if self._joins and self._before == _JOINER:
            width = 0
        if width == 0:
            self._join(character)
            return
        if self._column + width > self.columns:
            self._is_broken[self._row] = True
            self._down()
            self._column = 0
        self._fill(self._column, character, width)

    def _fill(self, column: int, character: str, width: int) -> None:
        line = self._lines[self._row]
        line += [(" ", "")] * (column - len(line))
        line[column : column + width] = [(character, self._style)] + [("", self._style)] * (
            width - 1
        )
        self._column += width

    def _join(self, character: str) -> None:
        line = self._lines[self._row]
        place = self._column - 1
        while place > 0 and not line[place][0]:
            place -= 1
        if place >= 0:
            before = line[place][0]
            line[place] = (before + character if character not in before else before, self._style)

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])
            self._is_broken.append(False)
