"""What may be typed in a chat beside messages."""

import re
from dataclasses import dataclass

COMMANDS = {
    "/help": "show this",
    "/system [TEXT]": "show the system prompt, or set it from the next message on",
    "/clear": "forget the conversation, keep the system prompt",
    "/stats": "show tokens, times and sampling of the last answer",
    "/exit": "leave",
}
KEYS = {
    "Enter": "send; a pasted text is one message, however many lines it has",
    "Alt-Enter": "start a new line",
    "Ctrl-C": "stop the answer and keep what was said; at the prompt, drop the line",
    "Ctrl-D": "leave",
}
_SHAPE = re.compile(r"(/[A-Za-z?]*)(?:[ \t]+([^\r\n]*))?")


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command as it was typed; whether there is such a command is not yet known."""

    name: str
    argument: str


def parse_slash(text: str) -> SlashCommand | None:
    """The command on a line, or None for a message: a path or a comment is a message."""
    match = _SHAPE.fullmatch(text.rstrip())
    return SlashCommand(match[1].lower(), (match[2] or "").strip()) if match else None
