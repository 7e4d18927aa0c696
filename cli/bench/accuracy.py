"""What each choice of weights costs in accuracy: perplexity, and how often the likeliest next token
is another one than in float32, both on a fixed text whose true tokens are given.

The text is documentation that comes with Python: natural language with code in it.
"""

import decimal
import difflib
import doctest
import heapq
import inspect
import json
import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...actors.config import EngineConfig
from ...messages import ConfigError, SamplingParams
from ..mistake import Mistake
from ..runner import progress, running_engine
from .measurement import Measurement, Row
from .on_model import engine_facts
from .reporting import Report

_DOCUMENTED = (json, heapq, difflib, difflib.SequenceMatcher, decimal, string.Template, doctest)
_WINDOW, _WINDOWS = 512, 4  # tokens of a prompt; how many of them at most
_FEW = 4  # tokens of a step that is computed as decoding is

REFERENCE = "float32"
CHOICES: dict[str, dict[str, Any]] = {
    REFERENCE: {"dtype": "float32", "quantization": "none"},
    "auto": {},
    "auto, few at a time": {"max_num_batched_tokens": _FEW, "max_num_seqs": 1},
    "bfloat16": {"dtype": "bfloat16", "quantization": "none"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}


@dataclass(frozen=True, slots=True)
class Predictions:
    """The likeliest token at each position of the text, and the logprob of the true one."""

    likeliest: Sequence[int]
    logprobs: Sequence[float]


async def measure_accuracy(config: EngineConfig, report: Report) -> None:
    """Every choice that this machine and model can be run in. Raises Mistake where the model cannot
    be run in float32, or its context is too short."""
    reference: Predictions | None = None
    for name, choice in CHOICES.items():
        try:
            about, found = await _predict(replace(config, **choice), name)
        except ConfigError as error:
            if reference is None:
                raise
            report.show({"bench": f"accuracy, {name}", "left_out": str(error)})
            continue
        reference = reference or found
        report.add(Measurement(f"accuracy, {name}", about, [compare(found, reference)]))


def compare(found: Predictions, reference: Predictions) -> Row:
    """Perplexity, and the share of positions at which the likeliest token is another. Pure."""
    pairs = zip(found.likeliest, reference.likeliest, strict=True)
    differing = sum(own != other for own, other in pairs)
    return {
        "perplexity": math.exp(-sum(found.logprobs) / len(found.logprobs)),
        "likeliest_differs_percent": 100 * differing / len(found.likeliest),
    }


async def _predict(config: EngineConfig, name: str) -> tuple[dict[str, object], Predictions]:
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
    likeliest: list[int] = []
    logprobs: list[float] = []
    async with running_engine(config) as engine:
        windows = list(_windows(await engine.tokenize(_text()), engine.facts.max_model_len - 1))
        with progress(f"{name}: {len(windows)} x {len(windows[0])} tokens"):
            for window in windows:
                result = await engine.generate(window, params)
                told = [at for at in result.prompt_logprobs or () if at is not None]
                likeliest += [at.top[0].token_id for at in told]
                logprobs += [at.token.logprob for at in told]
        about = {**engine_facts(engine), "positions": len(likeliest)}
    return about, Predictions(likeliest, logprobs)


def _text() -> str:
    return "\n\n".join(inspect.getdoc(thing) or "" for thing in _DOCUMENTED)


def _windows(token_ids: Sequence[int], longest: int) -> Iterator[list[int]]:
    size = min(_WINDOW, longest, len(token_ids))
    if size < 2:
        raise Mistake(f"the model's context of {longest + 1} positions is too short to predict in")
    for number in range(min(_WINDOWS, len(token_ids) // size)):
        yield list(token_ids[number * size : (number + 1) * size])
