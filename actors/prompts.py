"""Prompts given as token ids: checked, and turned into the array of a request.

A long prompt is read in slices, and between them the event loop goes on with its other work, so
that nobody's stream stutters because somebody sends a book.
"""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..gpu.device import DeviceFacts
from ..messages import Ints, RequestRejected, seal
from ..messages.param_rules import shown

SLICE = 8_192  # tokens: about 0.2 ms


class PromptReader:
    """Reads prompts; long ones one at a time, so that many of them do not add up in a turn."""

    def __init__(self, facts: DeviceFacts) -> None:
        self._facts = facts
        self._long_prompt = asyncio.Lock()

    async def read(self, prompt: object) -> Ints:
        """A caller's ids as an owned, read-only array. Raises RequestRejected, naming the id."""
        if isinstance(prompt, np.ndarray):
            return self._read_array(prompt)
        if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
            _refuse(prompt)
        self.check_length(len(prompt))
        if len(prompt) <= SLICE:
            return seal(self._read_row(prompt))
        kept = tuple(prompt)  # the caller may change a list meanwhile
        token_ids = np.empty(len(kept), dtype=np.int32)
        async with self._long_prompt:
            for start in range(0, len(kept), SLICE):
                token_ids[start : start + SLICE] = self._read_row(kept[start : start + SLICE])
                await asyncio.sleep(0)
        return seal(token_ids)

    def check_length(self, num_tokens: int) -> None:
        """Refuse what can never be served."""
        if num_tokens == 0:
            raise RequestRejected("the prompt is empty; it must hold at least one token")
        most = self._facts.max_model_len - 1
        if num_tokens > most:
            raise RequestRejected(
                f"the prompt has {num_tokens:,} tokens; it may have {most:,}, because the context "
                f"is {most + 1:,} tokens ({self._facts.num_blocks:,} KV blocks of "
                f"{self._facts.block_size}) and must hold at least one more"
            )

    def _read_row(self, prompt: Sequence[Any]) -> Ints:
        try:
            # Of all ways to an array this is the quickest, and it takes whole numbers only.
            token_ids: Ints = np.array(array("i", prompt), dtype=np.int32)
        except (TypeError, OverflowError):
            self._refuse_id(prompt)
        least, most = np.minimum.reduce(token_ids), np.maximum.reduce(token_ids)
        if least < 0 or most >= self._facts.vocab_size:
            self._refuse_id(prompt)
        if least <= 1:  # True and False are numbers, too, but nobody's token ids
            few = (token_ids <= 1).nonzero()[0].tolist()
            if any(isinstance(prompt[place], bool) for place in few):
                self._refuse_id(prompt)
        return token_ids

    def _read_array(self, prompt: NDArray[Any]) -> Ints:
        if prompt.ndim != 1:
            _refuse(prompt)
        self.check_length(len(prompt))
        is_whole = prompt.dtype.kind in "iu"
        if not is_whole or prompt.min() < 0 or prompt.max() >= self._facts.vocab_size:
            self._refuse_id(prompt)
        return seal(prompt.astype(np.int32))

    def _refuse_id(self, prompt: Sequence[Any] | NDArray[Any]) -> NoReturn:
        """Find the id that was wrong."""
        for token_id in prompt:
            is_id = isinstance(token_id, (int, np.integer)) and not isinstance(token_id, bool)
            if not is_id or not 0 <= token_id < self._facts.vocab_size:
                raise RequestRejected(
                    f"the prompt holds {shown(token_id)}; "
                    f"token ids go from 0 to {self._facts.vocab_size - 1}"
                )
        _refuse(prompt)


def _refuse(prompt: object) -> NoReturn:
    raise RequestRejected(
        f"the prompt is {shown(prompt)}; it must be text or a sequence of token ids"
    )
