"""Colours for Markdown and code. They change how characters look and never which there are, so
what is copied from the screen is what the model wrote.
"""

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer

BOLD, ITALIC, UNDERLINED, DIM = "1", "3", "4", "2"
RED, GREEN, YELLOW, MAGENTA, CYAN = "31", "32", "33", "35", "36"  # readable on dark and on light

_TOKENS = {  # the nearest entry above a token's own type counts
    "Token.Comment": DIM,
    "Token.Keyword": MAGENTA,
    "Token.Name.Builtin": CYAN,
    "Token.Name.Class": BOLD,
    "Token.Name.Decorator": CYAN,
    "Token.Name.Function": BOLD,
    "Token.Name.Tag": MAGENTA,
    "Token.Literal.Number": CYAN,
    "Token.Literal.String": GREEN,
    "Token.Operator.Word": MAGENTA,
    "Token.Generic.Deleted": RED,
    "Token.Generic.Inserted": GREEN,
    "Token.Generic.Heading": BOLD,
}
_HEADING = re.compile(r" {0,3}#{1,6} .*")
_MARKER = re.compile(r"(\s*(?:[-*+]|\d{1,9}[.)]|>)\s)(.*)", re.DOTALL)
_INLINE = re.compile(
    r"(?P<code>(`+)(?!`).+?(?<!`)\2(?!`))"
    r"|(?P<bold>\*\*(?=\S).+?(?<=\S)\*\*|(?<!\w)__(?=\S).+?(?<=\S)__(?!\w))"
    r"|(?P<italic>(?<![\w*])\*(?=[^\s*]).+?(?<=[^\s*])\*(?![\w*])|(?<!\w)_(?=\S).+?(?<=\S)_(?!\w))"
    r"|(?P<link>\[[^\]\n]+\]\([^)\s]+\))"
)
_INLINE_STYLES = {"code": CYAN, "bold": BOLD, "italic": ITALIC, "link": UNDERLINED}


def styled(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if text and style else text


def prose(line: str) -> str:
    """A line of Markdown."""
    if _HEADING.fullmatch(line):
        return styled(line, BOLD)
    marker = _MARKER.fullmatch(line)
    head, rest = (styled(marker[1], YELLOW), marker[2]) if marker else ("", line)
    return head + _INLINE.sub(_inline, rest)


def _inline(match: re.Match[str]) -> str:
    kind = next(name for name, style in _INLINE_STYLES.items() if match[name])
    return styled(match[0], _INLINE_STYLES[kind])


def code(text: str, language: str) -> str:
    """Lines of a program; an unknown language stays as it is."""
    lexer = _lexer(language)
    if lexer is None:
        return text
    pieces = [(str(kind), value) for kind, value in lexer.get_tokens(text)]
    if "".join(value for _, value in pieces) not in (text, text + "\n"):
        return text  # a lexer that changes its text is not to be trusted with it
    coloured = "".join(_by_line(value, _style(kind)) for kind, value in pieces)
    return coloured if text.endswith("\n") else coloured.removesuffix("\n")


def _by_line(value: str, style: str) -> str:
    """A colour ends with its line, so that lines can be shown one by one."""
    return "\n".join(styled(line, style) for line in value.split("\n"))


@lru_cache
def _style(kind: str) -> str:
    while kind not in _TOKENS:
        kind, dot, _ = kind.rpartition(".")
        if not dot:
            return ""
    return _TOKENS[kind]


@lru_cache(maxsize=16)
def _lexer(language: str) -> "Lexer | None":
    """Looked for when a language is first met: the libraries take a while to load."""
    if not language:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
