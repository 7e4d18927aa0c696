"""The part of an Engine that scores: how likely given tokens are, without an answer."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Unpack

from ..messages import (
    Ints,
    PositionLogprobs,
    RequestFailed,
    RequestRejected,
    Result,
    SamplingParams,
    Score,
)
from ..messages.param_rules import shown
from .config import EngineConfig
from .prompt_texts import Prompt
from .request_options import Options, ScoreOptions
from .stream import DeltaStream
from .wiring import Wiring


class EngineScoring(ABC):
    """What an Engine offers for given tokens."""

    config: EngineConfig

    @property
    @abstractmethod
    def _started(self) -> Wiring: ...

    @abstractmethod
    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> DeltaStream: ...

    async def score(
        self,
        prompt: Prompt,
        completions: Sequence[Prompt],
        *,
        logprobs: int = 0,
        **options: Unpack[ScoreOptions],
    ) -> tuple[Score, ...]:
        """The logprobs of each completion's tokens behind the prompt, and of the `logprobs`
        likeliest tokens beside each; in the order given. All may be text or token ids.

        Each completion is a request of its own, to which the options apply; the first computes the
        prompt, and the others find it cached, unless caching is off. Raises what `generate` does,
        and RequestFailed where a deadline ended one of them.
        """
        if isinstance(completions, str) or not isinstance(completions, Sequence):
            raise RequestRejected(
                f"completions is {shown(completions)}; it must be a sequence of texts or of "
                "sequences of token ids"
            )
        texts = self._started.intake.texts
        before = await texts.read(prompt)
        pairs = [await texts.read_pair(prompt, before, completion) for completion in completions]
        turns = asyncio.Semaphore(self.config.max_num_seqs)

        async def one(token_ids: Ints, start: int) -> Score:
            params = SamplingParams(
                max_tokens=1, temperature=0, prompt_logprobs=logprobs, prompt_logprobs_start=start
            )
            async with turns:
                result = await self.stream(token_ids.tolist(), params, **options).result()
            return _score(result, token_ids[start:].tolist())

        if not pairs:
            return ()
        first = await one(*pairs[0])
        tasks = [asyncio.ensure_future(one(*pair)) for pair in pairs[1:]]
        try:
            return (first, *await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # one failed, or nobody waits any more
                task.cancel()


def _score(result: Result, token_ids: list[int]) -> Score:
    told: list[PositionLogprobs] = [own for own in result.prompt_logprobs or () if own is not None]
    if len(told) < len(token_ids):
        raise RequestFailed(f"a completion was not scored to its end: {result.finish_reason}")
    return Score(tuple(token_ids), tuple(told), result.usage)
