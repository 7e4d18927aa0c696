"""Logprobs as JSON fields."""

import math
from typing import Any

from ..messages import Output, PositionLogprobs, Result, TokenLogprob


def logprob_fields(output: Output) -> dict[str, object]:
    """What an output tells of its tokens, where that was asked for."""
    if output.logprobs is None:
        return {}
    assert output.cumulative_logprob is not None
    return {
        "logprobs": [position_fields(told) for told in output.logprobs],
        "cumulative_logprob": _number(output.cumulative_logprob),
    }


def prompt_logprob_fields(result: Result) -> dict[str, object]:
    """What a result tells of its prompt's tokens, where that was asked for."""
    told = result.prompt_logprobs
    if told is None:
        return {}
    return {"prompt_logprobs": [None if own is None else position_fields(own) for own in told]}


def position_fields(told: PositionLogprobs) -> dict[str, Any]:
    fields: dict[str, Any] = _token(told.token)
    if told.top:
        fields["top"] = [_token(one) for one in told.top]
    if told.asked:
        fields["asked"] = [_token(one) for one in told.asked]
    return fields


def _token(one: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": one.token_id,
        "text": one.text,
        "bytes": None if one.token_bytes is None else list(one.token_bytes),
        "logprob": _number(one.logprob),
        "rank": one.rank,
    }


def _number(value: float) -> float | None:
    """JSON has no infinity: what is impossible is null."""
    return value if math.isfinite(value) else None
