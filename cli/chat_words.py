"""The options about a conversation: tools, formats, what its template asks for."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..actors.chat_options import ChatOptions, ChatWords
from ..actors.text.answer_formats import REASONING_FORMATS, TOOL_FORMATS
from .mistake import Mistake
from .options import Command, gather


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFlags:
    """What was said about a conversation; None where nothing was."""

    tools: Path | None
    tool_format: str | None
    reasoning_format: str | None
    template_option: tuple[str, ...]

    def words(self) -> ChatWords:
        """The same as keywords of `stream_chat`. Raises Mistake or RequestRejected."""
        words: ChatWords = {}
        if self.tools is not None:
            words["tools"] = _read_tools(self.tools)
        if self.tool_format is not None:
            words["tool_format"] = self.tool_format
        if self.reasoning_format is not None:
            words["reasoning_format"] = self.reasoning_format
        if self.template_option:
            words["template_options"] = dict(map(_named_value, self.template_option))
        ChatOptions(**words).check()
        return words


def _read_tools(file: Path) -> list[Any]:
    try:
        tools = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Mistake(f"--tools {file} cannot be read as JSON: {error}") from error
    return tools if isinstance(tools, list) else [tools]


def _named_value(text: str) -> tuple[str, object]:
    """`name=value`, where a value that is JSON counts as what it says."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Mistake(f"--template-option is {text!r}; it must be NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


_CHAT = (
    click.option(
        "--tools",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Functions that the model may call, as a JSON list.",
    ),
    click.option(
        "--tool-format",
        type=click.Choice(("auto", "none", *TOOL_FORMATS)),
        help="How the model writes calls.",
    ),
    click.option(
        "--reasoning-format",
        type=click.Choice(("auto", "none", *REASONING_FORMATS)),
        help="How the model marks what it thinks.",
    ),
    click.option(
        "--template-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="What the model's template asks for, as enable_thinking=false. Repeatable.",
    ),
)


def chat_options(command: Command) -> Command:
    """Give a command the options about the conversation, as its argument `flags`."""
    return gather(command, "flags", ChatFlags, _CHAT)
