"""The parts of an answer in a chat, and how a model marks them."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of what the model says to the user.

    `source` is the model's own text that a part stands for, with the markers and the space next to
    them; the sources of all parts in a row are the output's text.
    """

    text: str
    source: str
    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of what the model thinks before it answers."""

    text: str
    source: str
    type: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A whole call of a tool. It comes at once, when the model has finished writing it: what turns
    out to be no call is a TextDelta."""

    call_id: str  # the model's own, or one that is made for it; unique within an answer
    name: str
    arguments: str  # a JSON object, as text
    source: str
    type: Literal["tool_call"] = "tool_call"


AnswerPart: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How the parts of an answer are marked in it: names of formats, None where nothing is."""

    reasoning: str | None = None
    tools: str | None = None
    begun: str = ""  # what the prompt has the model say already: the answer goes on from there


def joined_parts(parts: Iterable[AnswerPart]) -> tuple[AnswerPart, ...]:
    """The same parts with neighbours of one kind made one; a call stays one call."""
    joined: list[AnswerPart] = []
    for kind, group in groupby(parts, key=type):
        if kind is ToolCallDelta:
            joined += group
            continue
        pieces = [(part.text, part.source) for part in group if not isinstance(part, ToolCallDelta)]
        text, source = ("".join(column) for column in zip(*pieces, strict=True))
        joined.append(
            TextDelta(text, source) if kind is TextDelta else ReasoningDelta(text, source)
        )
    return tuple(joined)
