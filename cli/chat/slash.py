"""A line that begins like a command, taken apart."""

import re
from dataclasses import dataclass

_SHAPE = re.compile(r"(/[A-Za-z?]*)(?:[ \t]+([^\r\n]*))?")
QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command as it was typed; whether there is such a command is not yet known."""

    name: str
    argument: str


def parse_slash(text: str) -> SlashCommand | None:
    """The command on a line, or None for a message: a path or a comment is a message."""
    match = _SHAPE.fullmatch(text.rstrip())
    return SlashCommand(match[1].lower(), (match[2] or "").strip()) if match else None


def is_open(text: str) -> bool:
    """Whether a text has begun with three quotes and does not end with three others."""
    stripped = text.strip()
    is_closed = stripped.endswith(QUOTES) and len(stripped) >= 2 * len(QUOTES)
    return stripped.startswith(QUOTES) and not is_closed


def unquoted(text: str) -> str:
    """A message without the three quotes around it; what is inside is kept as it was typed."""
    stripped = text.strip()
    if not stripped.startswith(QUOTES) or is_open(text):
        return text
    inside = stripped[len(QUOTES) : -len(QUOTES)]
    return inside.removeprefix("\n").removesuffix("\n")
