"""The logprobs of a live output, until they are shown with their tokens. Pure."""

from collections import deque
from dataclasses import replace
from typing import TypeAlias

from ..messages import Delta, Generate, Logprobs, PositionLogprobs, TokenLogprob
from .text.token_texts import TokenTexts

One: TypeAlias = tuple[int, float, int]
"""An id, its logprob and its rank."""


class LiveLogprobs:
    """What one request is told, in the order of its tokens."""

    def __init__(self, request: Generate, texts: TokenTexts) -> None:
        self._num_prompt = len(request.prompt)
        self._texts = texts
        self._tells_samples = tells_samples(request)
        self._sampled: deque[PositionLogprobs] = deque()
        self._prompt: list[PositionLogprobs | None] | None = None
        if request.params.prompt_logprobs is not None:
            self._prompt = [None] if request.params.prompt_logprobs_start == 0 else []

    def add(self, position: int, told: list[One], top: int) -> None:
        """What is told of a position: (id, logprob, rank) of its token, the likeliest, others."""
        tokens = [TokenLogprob(*one, *self._texts.of(one[0])) for one in told]
        entry = PositionLogprobs(tokens[0], tuple(tokens[1 : 1 + top]), tuple(tokens[1 + top :]))
        if position >= self._num_prompt:
            self._sampled.append(entry)
        else:
            assert self._prompt is not None
            self._prompt.append(entry)

    def tell(self, delta: Delta) -> Delta:
        """A delta with what is told of its tokens, and of the prompt if it is the first. What came
        behind the end of the answer is dropped, as its tokens are."""
        logprobs = None
        if self._tells_samples:
            logprobs = tuple(self._sampled.popleft() for _ in delta.token_ids)
        prompt, self._prompt = self._prompt, None
        return replace(
            delta,
            logprobs=logprobs,
            prompt_logprobs=None if prompt is None else tuple(prompt),
        )


def tells_samples(request: Generate) -> bool:
    """Whether a request is told of the tokens that are sampled for it."""
    return request.params.logprobs is not None or len(request.params.logprob_token_ids) > 0


def asks(request: Generate) -> bool:
    """Whether a request is told of any tokens."""
    return tells_samples(request) or request.params.prompt_logprobs is not None


def entries(told: Logprobs) -> list[tuple[int, int, list[One], int]]:
    """(owner, position, what is told, how many of it are the likeliest) of every entry."""
    ids, values, ranks = told.token_ids.tolist(), told.values.tolist(), told.ranks.tolist()
    flat = list(zip(ids, values, ranks, strict=True))
    ends = told.counts.cumsum().tolist()
    starts = [0, *ends[:-1]]
    columns = (told.owners.tolist(), told.positions.tolist(), starts, ends, told.tops.tolist())
    return [
        (owner, position, flat[start:end], top)
        for owner, position, start, end, top in zip(*columns, strict=True)
    ]
