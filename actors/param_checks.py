"""Sampling parameters against the model: what SamplingParams alone cannot know."""

from collections.abc import Iterable

from ..gpu.device import DeviceFacts
from ..messages import RequestRejected, SamplingParams
from ..messages.param_rules import shown


def check_against_model(params: SamplingParams, facts: DeviceFacts) -> None:
    """Raise RequestRejected where a parameter names an id that the model does not have, or a
    logits processor that the engine was not given."""
    vocab_size = facts.vocab_size
    _check("stop_token_ids", params.stop_token_ids, vocab_size)
    _check("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    _check("logit_bias", params.logit_bias, vocab_size)
    _check("logprob_token_ids", params.logprob_token_ids, vocab_size)
    for text in params.logits_processors:
        name = text.partition("=")[0]
        if name not in facts.logits_processors:
            known = ", ".join(sorted(facts.logits_processors)) or "none"
            raise RequestRejected(
                f"logits_processors names {shown(name)}; the engine was given: {known}"
            )


def _check(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise RequestRejected(
                f"{name} holds {token_id}; the model's ids go from 0 to {vocab_size - 1}"
            )
