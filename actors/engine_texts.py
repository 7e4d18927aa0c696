"""Text to token ids and back, as the engine itself does it: part of Engine."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Unpack

from .chat_options import ChatOptions, ChatWords
from .intake import Intake
from .prompt_texts import Conversation


class EngineTexts(ABC):
    """Tokenising and detokenising. Ids go in and out unchanged: a prompt's ids, the ids that were
    sampled and the ids of what is said next are, in a row, the next prompt."""

    @property
    @abstractmethod
    def _intake(self) -> Intake:
        """The intake of the running engine. Raises ConfigError before the start."""

    async def tokenize(
        self,
        prompt: str | Conversation,
        *,
        add_special_tokens: bool = True,
        **chat: Unpack[ChatWords],
    ) -> list[int]:
        """The token ids of a text, or of a conversation as `chat` sends it to the model.

        Without `add_special_tokens` a text has no BOS: it goes on from other ids.
        """
        texts = self._intake.texts
        if isinstance(prompt, str):
            return await texts.tokenize(prompt, add_special_tokens=add_special_tokens)
        ids, _ = await texts.write_chat(prompt, ChatOptions(**chat), is_open=False)
        token_ids: list[int] = ids.tolist()
        return token_ids

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> str:
        """The text of token ids; those that name no token have none."""
        return await self._intake.texts.detokenize(
            token_ids, skip_special_tokens=skip_special_tokens
        )
