"""How many rows of a terminal a line takes.

Terminals agree about most characters and differ about joined ones: an emoji of several parts may be
drawn as one or part by part. So a height is given only where every way comes to the same.
"""

from wcwidth import wcwidth

TAB = 8
_JOINER, _NARROW, _WIDE = "\u200d", "\ufe0e", "\ufe0f"
_FLAGS = range(0x1F1E6, 0x1F200)  # two of these make a flag
_SKIN_TONES = range(0x1F3FB, 0x1F400)


def height(line: str, columns: int) -> int | None:
    """Rows that a line takes; None where it depends on the terminal."""
    if line.isascii() and "\t" not in line:
        return max(1, -(-len(line) // columns))
    least, most = zip(*_widths(line), strict=True)
    rows = _rows(least, columns)
    return rows if rows == _rows(most, columns) else None


def _widths(line: str) -> list[tuple[int, int]]:
    """Columns of each character, at least and at most; a tab is -1."""
    widths = []
    before = ""
    for character in line:
        width = -1 if character == "\t" else max(wcwidth(character), 0)
        if ord(character) in _FLAGS:
            widths.append((1, 2))
        elif before == _JOINER or ord(character) in _SKIN_TONES:
            widths.append((0, width))
        elif character in (_WIDE, _NARROW):
            widths.append((0, 1))
        else:
            widths.append((width, width))
        before = character
    return widths


def _rows(widths: tuple[int, ...], columns: int) -> int | None:
    """A character that does not fit into the rest of a row begins the next one; what a tab does
    there is up to the terminal."""
    rows, column = 1, 0
    for width in widths:
        if width < 0:
            column = (column // TAB + 1) * TAB
            if column >= columns:
                return None
            continue
        if column + width > columns:
            rows, column = rows + 1, 0
        column += width
    return rows
