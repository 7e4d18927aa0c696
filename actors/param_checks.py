"""Sampling parameters against the model: what SamplingParams alone cannot know."""

from collections.abc import Iterable

from ..messages import RequestRejected, SamplingParams


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestRejected where a parameter names an id that the model does not have."""
    _check("stop_token_ids", params.stop_token_ids, vocab_size)
    _check("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    _check("logit_bias", params.logit_bias, vocab_size)


def _check(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise RequestRejected(
                f"{name} holds {token_id}; the model's ids go from 0 to {vocab_size - 1}"
            )
