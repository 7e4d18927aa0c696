"""How much faster or slower rows are that follow a structure than free ones, side by side."""

import asyncio
import time
from collections.abc import Sequence

import numpy as np

from ...actors.config import EngineConfig
from ...actors.engine import Engine
from ...messages import SamplingParams, StructuredOutput
from ..runner import progress, running_engine
from .measurement import Measurement, Row
from .on_model import engine_facts
from .reporting import Report

REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 32, 96

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
STRUCTURES = {
    "free": None,
    # Hardly anything is forced: what masks cost.
    "text": StructuredOutput.regex(r"([A-Za-z]+[ ,.!?\n]+)+"),
    # Longer than the answers, so that all of them have the same length.
    "json": StructuredOutput.json_schema({"type": "array", "items": _PERSON, "minItems": 90}),
}


async def measure_structured(config: EngineConfig, runs: int, report: Report) -> None:
    """Each run is a batch of each kind, one after the other; a warm-up comes first."""
    async with running_engine(config) as engine:
        with progress(f"structured, {runs} runs after a warm-up"):
            rows = [await _run(engine, number) for number in range(runs + 1)]
        about = {**engine_facts(engine), "requests": REQUESTS, "output_tokens": OUTPUT_TOKENS}
    report.add(Measurement("structured", about, rows[1:], warm_up=rows[0]))


async def _run(engine: Engine, number: int) -> Row:
    row: dict[str, float] = {}
    for place, (kind, structure) in enumerate(STRUCTURES.items()):
        random = np.random.default_rng((number, place))  # so no prompt is cached
        shape = (REQUESTS, PROMPT_TOKENS)
        prompts = random.integers(0, engine.facts.vocab_size, shape).tolist()
        row[f"{kind}_tok_s"] = await _speed(engine, prompts, structure)
    for kind in ("text", "json"):
        row[f"{kind}_to_free"] = row[f"{kind}_tok_s"] / row["free_tok_s"]
    return row


async def _speed(
    engine: Engine, prompts: Sequence[Sequence[int]], structure: StructuredOutput | None
) -> float:
    """Output tokens per second of a batch, prompts included."""
    params = SamplingParams(
        max_tokens=OUTPUT_TOKENS,
        temperature=1,
        seed=1,
        ignore_eos=True,
        structured_output=structure,
    )
    began = time.perf_counter()
    results = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
    seconds = time.perf_counter() - began
    return sum(len(result.token_ids) for result in results) / seconds
