"""What the engine asks of a tokenizer, whatever files it came from."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from ...messages import ChatFormat, RequestRejected
from .answer_formats import reasoning_format_of, tool_format_of
from .detokenize import IncrementalDetokenizer


class ChatTemplate(Protocol):
    """Writes a conversation the way one model was trained to read it."""

    source: str  # the program; what it says tells how the model marks calls and reasoning

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        options: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the prompt's text, or raise RequestRejected."""


class Tokenizer(ABC):
    """Text to ids and back, for one model.

    Nothing changes after it has been made, so threads may share it.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        eos_token_ids: Collection[int],
        special_token_ids: Collection[int],
        added_tokens: Mapping[str, int] | None = None,
        prompt_prefix: Sequence[int] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        self.vocab_size = vocab_size  # ids are below it
        self.eos_token_ids = frozenset(eos_token_ids)  # what the tokenizer's own files name
        self.special_token_ids = frozenset(special_token_ids)
        self.added_tokens = dict(added_tokens or {})  # ids of those found whole in a text
        self._prompt_prefix = list(prompt_prefix)  # BOS, where the model wants one
        self._chat_template = chat_template

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt; special tokens written in the text are recognised.

        Where the model wants a BOS there is exactly one, also if the text begins with it.
        """
        return self._with_prefix(self._encode_plain(_checked(text)))

    def encode_rest(self, text: str) -> list[int]:
        """Return the ids of a text that goes on: there is no BOS before it."""
        return self._encode_plain(_checked(text))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        options: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> tuple[list[int], str]:
        """Return a conversation as the model's chat template writes it: the ids and the text.

        With `continue_final_message` the prompt ends with the last message's text exactly as it
        was given, and `add_generation_prompt` has no effect. `options` reach the template by name.
        """
        if self._chat_template is None:
            raise RequestRejected("this model has no chat template; give a plain prompt instead")
        text = self._chat_template.render(
            messages,
            tools=tools,
            options=options,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self.encode(text), text

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How the model marks reasoning and calls of tools, as far as its files tell."""
        template = "" if self._chat_template is None else self._chat_template.source
        return ChatFormat(
            reasoning_format_of(template, self.added_tokens), tool_format_of(template)
        )

    @abstractmethod
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the ids; ids that name no token have none."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return what an id adds to a text that it goes on from; special tokens are their names."""
        before = self._encode_plain("a")
        shown = self.decode(before, skip_special_tokens=False)
        text = self.decode([*before, token_id], skip_special_tokens=False)
        return text.removeprefix(shown).encode("utf-8", "replace")

    @abstractmethod
    def detokenizer(self, *, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """Return a decoder for one output, whose pieces join to what `decode` returns."""

    @abstractmethod
    def _encode_plain(self, text: str) -> list[int]:
        """Return the ids of the text and nothing else."""

    def _with_prefix(self, token_ids: list[int]) -> list[int]:
        """Put the model's BOS in front, in place of any the text brought along."""
        prefix = self._prompt_prefix
        if not prefix:
            return token_ids
        start = 0
        while token_ids[start : start + len(prefix)] == prefix:
            start += len(prefix)
        return prefix + token_ids[start:]


def _checked(text: str) -> str:
    """Return the text if it can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestRejected(
            f"the text has half of a surrogate pair at position {error.start}; "
            "it must be a text that UTF-8 can hold"
        ) from error
    return text
