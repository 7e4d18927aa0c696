"""Adjustments: how a request changes its logits before anything is cut off or drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from .params import SamplingParams
from .token_bias import NO_BIAS


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustments:
    """What a row of a batch does to its logits, in the order in which it happens.

    SamplingParams says what each means; here words are token ids.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = NO_BIAS
    logits_processors: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    no_repeat_ngram_size: int = 0

    @classmethod
    def of(cls, params: SamplingParams, bad_words: tuple[tuple[int, ...], ...]) -> Self | None:
        """Those of a request; None where there are none, as for most."""
        adjustments = cls(
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            logit_bias=params.logit_bias,
            logits_processors=params.logits_processors,
            allowed_token_ids=params.allowed_token_ids,
            bad_words=bad_words,
            no_repeat_ngram_size=params.no_repeat_ngram_size,
        )
        return None if adjustments == _NONE else adjustments

    @property
    def has_penalties(self) -> bool:
        is_plain = self.repetition_penalty == 1 and not self.frequency_penalty
        return not is_plain or self.presence_penalty != 0


_NONE = Adjustments()
