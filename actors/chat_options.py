"""ChatOptions: what a caller may say of a conversation beside its messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from ..messages import ChatFormat, RequestRejected
from ..messages.param_rules import shown
from .request_options import Options
from .text.answer_formats import REASONING_FORMATS, TOOL_FORMATS, begun_in
from .text.conversation import checked_tools


class ChatWords(TypedDict, total=False):
    """Chat options, as keywords; ChatOptions tells what each means."""

    tools: Sequence[Mapping[str, object]] | None
    continue_final_message: bool
    template_options: Mapping[str, object] | None
    reasoning_format: str
    tool_format: str


class ChatRequestOptions(Options, ChatWords, total=False):
    """Everything that may be said of a chat, as keywords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a caller may say of a conversation beside its messages."""

    tools: Sequence[Mapping[str, object]] | None = None  # functions that the model may call
    continue_final_message: bool = False  # the last message is the model's own: go on with it
    template_options: Mapping[str, object] | None = None  # such as enable_thinking=False
    reasoning_format: str = "auto"  # or "none", or a format's name
    tool_format: str = "auto"  # calls are looked for where there are tools, or where it is named

    def check(self) -> None:
        """Raise RequestRejected where a value has no meaning, naming it."""
        if not isinstance(self.continue_final_message, bool):
            raise RequestRejected(
                f"continue_final_message is {shown(self.continue_final_message)}; "
                "it must be True or False"
            )
        checked_tools(self.tools)
        options = self.template_options
        if options is not None and not (
            isinstance(options, Mapping) and all(isinstance(name, str) for name in options)
        ):
            raise RequestRejected(
                f"template_options is {shown(options)}; it must map names to values"
            )
        _check_format("reasoning_format", self.reasoning_format, REASONING_FORMATS)
        _check_format("tool_format", self.tool_format, tuple(TOOL_FORMATS))

    def format_of(
        self, model: ChatFormat, prompt: str, messages: Sequence[Mapping[str, object]]
    ) -> ChatFormat:
        """How the answer's parts will be marked: as the model does, or as it was said here."""
        reasoning = _chosen(self.reasoning_format, model.reasoning)
        tools = _chosen(self.tool_format, model.tools if self.tools else None)
        continued = str(messages[-1].get("content", "")) if self.continue_final_message else ""
        begun = begun_in(prompt, continued) if reasoning or tools else ""
        return ChatFormat(reasoning, tools, begun)


CHAT_WORDS = tuple(field.name for field in fields(ChatOptions))


def without_chat_words(words: Mapping[str, Any]) -> tuple[dict[str, Any], ChatOptions]:
    """What is said of the request, and what of the conversation."""
    rest = {name: value for name, value in words.items() if name not in CHAT_WORDS}
    return rest, ChatOptions(**{name: words[name] for name in CHAT_WORDS if name in words})


def _chosen(said: str, otherwise: str | None) -> str | None:
    return otherwise if said == "auto" else None if said == "none" else said


def _check_format(name: str, given: object, formats: Sequence[str]) -> None:
    known = ("auto", "none", *formats)
    if given not in known:
        raise RequestRejected(f"{name} is {shown(given)}; it must be one of {', '.join(known)}")
