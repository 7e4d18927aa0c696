"""Prompts given as text or as a conversation: written by the template, and tokenised."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard, TypeVar

import numpy as np

from ..messages import ChatFormat, Ints, RequestRejected, seal
from ..messages.param_rules import shown
from .chat_options import ChatOptions
from .offload import Offload
from .prompts import PromptReader
from .text.bad_words import bad_word_ids
from .text.tokenizer import Tokenizer

T = TypeVar("T")
Prompt: TypeAlias = str | Sequence[int]
Conversation: TypeAlias = Sequence[Mapping[str, object]]

INLINE_CHARACTERS = 2_000  # tokenising less takes no longer than a hop to another thread
CHARACTERS_PER_WORD = 250  # a word that is tokenised in all its forms is as much work
INLINE_TOKENS = 4_000  # and so does decoding fewer


class PromptTexts:
    """Text to token ids and back; what is long is done elsewhere than on the event loop."""

    def __init__(self, tokenizer: Tokenizer, reader: PromptReader, offload: Offload) -> None:
        self._tokenizer = tokenizer
        self._reader = reader
        self._offload = offload

    async def read(self, prompt: Prompt) -> Ints:
        """The ids of a prompt that can be served. Raises RequestRejected."""
        if not isinstance(prompt, str):
            return await self._reader.read(prompt)
        if not prompt:
            raise RequestRejected("the prompt is empty; it must hold at least one character")
        return self._served(
            await self._away(len(prompt), lambda: _ids(self._tokenizer.encode(prompt)))
        )

    async def read_pair(self, prompt: Prompt, before: Ints, completion: Prompt) -> tuple[Ints, int]:
        """The ids of a prompt, which by itself was read as `before`, with what follows it; and
        where that begins.

        Two texts are written as one, so that the boundary is tokenised as it would be in a text:
        a token that reaches across it belongs to the completion.
        """
        if isinstance(prompt, str) and isinstance(completion, str):
            return await self._read_texts(prompt, before, completion)
        if isinstance(completion, str):
            after = _ids(await self.tokenize(completion, add_special_tokens=False))
        else:
            after = await self._reader.read(completion) if len(completion) else _ids(())
        return self._paired(before, after)

    async def _read_texts(self, prompt: str, before: Ints, completion: str) -> tuple[Ints, int]:
        whole = await self.read(prompt + completion)
        common = min(len(before), len(whole))
        differ = (before[:common] != whole[:common]).nonzero()[0]
        start = int(differ[0]) if len(differ) else common
        if start == 0 or not completion:  # nothing precedes it, or nothing follows
            after = await self.tokenize(completion, add_special_tokens=False)
            return self._paired(before, _ids(after))
        return whole, start

    def _paired(self, before: Ints, after: Ints) -> tuple[Ints, int]:
        if not len(after):
            raise RequestRejected("a completion is empty; it must hold at least one token")
        return self._served(seal(np.concatenate([before, after]))), len(before)

    async def read_chat(
        self, messages: Conversation, chat: ChatOptions, *, is_open: bool = False
    ) -> tuple[Ints, ChatFormat]:
        """The same for a conversation, and how the parts of its answer will be marked."""
        prompt, chat_format = await self.write_chat(messages, chat, is_open=is_open)
        return self._served(prompt), chat_format

    async def write_chat(
        self, messages: Conversation, chat: ChatOptions, *, is_open: bool
    ) -> tuple[Ints, ChatFormat]:
        """A conversation as the model's template writes it, for an answer or, with `is_open`, to
        go on. It may be longer than the context."""
        chat.check()
        return await self._away(len(str(messages)), lambda: self._write(messages, chat, is_open))

    def _write(
        self, messages: Conversation, chat: ChatOptions, is_open: bool
    ) -> tuple[Ints, ChatFormat]:
        token_ids, text = self._tokenizer.encode_chat(
            messages,
            tools=chat.tools,
            options=chat.template_options,
            add_generation_prompt=not is_open,
            continue_final_message=chat.continue_final_message,
        )
        return _ids(token_ids), chat.format_of(self._tokenizer.chat_format, text, messages)

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of any text, an empty one included."""
        encode = self._tokenizer.encode if add_special_tokens else self._tokenizer.encode_rest
        return await self._away(len(text), lambda: encode(text))

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of ids; those that name no token have none."""
        try:
            ids = array("q", token_ids).tolist()
        except (TypeError, OverflowError) as error:
            raise RequestRejected(
                f"token_ids is {shown(token_ids)}; it must be a sequence of token ids"
            ) from error

        def decoded() -> str:
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

        return decoded() if len(ids) <= INLINE_TOKENS else await self._offload(decoded)

    async def bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The ids of words that an answer must not say, in all their forms."""
        if not words:
            return ()
        size = CHARACTERS_PER_WORD * len(words)
        return await self._away(size, lambda: bad_word_ids(words, self._tokenizer))

    async def _away(self, size: int, function: Callable[[], T]) -> T:
        """Do something with a text of so many characters; with a long one elsewhere."""
        return function() if size <= INLINE_CHARACTERS else await self._offload(function)

    def _served(self, prompt: Ints) -> Ints:
        self._reader.check_length(len(prompt))
        return prompt


def _ids(token_ids: Sequence[Any]) -> Ints:
    return seal(np.array(token_ids, dtype=np.int32))


def is_conversation(prompt: object) -> TypeGuard[Conversation]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, str):
        return False
    return isinstance(next(iter(prompt), None), Mapping)
