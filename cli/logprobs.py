"""Logprobs as JSON fields, and as a table to read."""

import math
from collections.abc import Sequence
from typing import Any

from ..messages import PositionLogprobs, Result, TokenLogprob
from .render import table

Told = Sequence[PositionLogprobs | None]


def logprob_fields(result: Result) -> dict[str, object]:
    """What a result tells of its tokens and its prompt's, where that was asked for."""
    fields: dict[str, object] = {}
    output = result.outputs[0]
    if output.logprobs is not None:
        fields["logprobs"] = [_position(told) for told in output.logprobs]
        assert output.cumulative_logprob is not None
        fields["cumulative_logprob"] = _number(output.cumulative_logprob)
    if result.prompt_logprobs is not None:
        told = result.prompt_logprobs
        fields["prompt_logprobs"] = [None if own is None else _position(own) for own in told]
    return fields


def logprob_table(heading: str, told: Told) -> str:
    """A line for each token: what it is, how likely it was, and what was likelier."""
    rows = [
        ("-", "", "", "")
        if own is None
        else (*_cells(own.token), str(own.token.rank), _others(own))
        for own in told
    ]
    return table(rows, (heading, "logprob", "rank", "beside it"))


def _position(told: PositionLogprobs) -> dict[str, Any]:
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


def _cells(one: TokenLogprob) -> tuple[str, str]:
    return repr(one.text if one.text is not None else one.token_id), f"{one.logprob:.4f}"


def _others(told: PositionLogprobs) -> str:
    return "  ".join(" ".join(_cells(one)) for one in (*told.top, *told.asked))
