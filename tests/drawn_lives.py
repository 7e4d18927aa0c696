"""Engines and requests at random, and callers who leave early."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from stepahead import Engine, SamplingParams, StructuredOutput

VOCAB = 512  # ids that may be named


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and after how many tokens its caller leaves."""

    prompt: list[int]
    params: SamplingParams
    leaves_after: int | None
    priority: int


def draw_options(rng: random.Random) -> dict[str, Any]:
    blocks = rng.choice([24, 32, 128])
    return {
        "steps_in_flight": rng.randint(1, 4),
        "num_blocks": blocks,
        "num_host_blocks": rng.choice([0, 0, 40]),
        "max_num_seqs": rng.choice([2, 4, 8]),
        "max_num_batched_tokens": rng.choice([8, 16, 64]),
        "prefix_caching": rng.random() < 0.7,
        "watermark": rng.choice([0.0, 0.05]),
    }


def draw_ask(rng: random.Random, shared: list[int], *, may_be_structured: bool = True) -> Ask:
    """A prompt that may begin as others do, and wishes of which few want all."""
    prompt = shared[: rng.choice([0, 0, 9, 17])]
    prompt = prompt + [rng.randrange(3, 250) for _ in range(rng.randint(1, 20))]
    wishes: dict[str, Any] = {"temperature": rng.choice([0.0, 1.0, 1.4]), "seed": rng.randrange(99)}
    for name, value in (
        ("top_k", rng.randint(1, 40)),
        ("top_p", rng.uniform(0.3, 1.0)),
        ("min_p", rng.uniform(0.0, 0.2)),
        ("typical_p", rng.uniform(0.3, 1.0)),
        ("repetition_penalty", rng.uniform(0.7, 1.8)),
        ("frequency_penalty", rng.uniform(-1.0, 1.0)),
        ("logit_bias", {rng.randrange(VOCAB): rng.uniform(-5, 5)}),
        ("min_tokens", rng.randint(1, 4)),
        ("logprobs", rng.randint(0, 3)),
        ("no_repeat_ngram_size", rng.randint(1, 3)),
    ):
        if rng.random() < 0.15:
            wishes[name] = value
    is_structured = rng.random() < 0.2 and "no_repeat_ngram_size" not in wishes
    if is_structured and may_be_structured:
        wishes["structured_output"] = StructuredOutput.regex("[a-d]{3,9}")
    else:
        wishes["stop_token_ids"] = tuple(rng.randrange(VOCAB) for _ in range(20))
    params = SamplingParams(max_tokens=rng.randint(4, 18), **wishes)
    leaves_after = rng.randint(1, 5) if rng.random() < 0.25 else None
    return Ask(prompt, params, leaves_after, rng.choice([0, 0, 1]))


async def live(engine: Engine, ask: Ask, delay: float = 0.0) -> list[int]:
    """What is heard of a request."""
    await asyncio.sleep(delay)
    said: list[int] = []
    async for delta in engine.stream(ask.prompt, ask.params, priority=ask.priority):
        said += delta.token_ids
        if ask.leaves_after is not None and len(said) >= ask.leaves_after:
            return said[: ask.leaves_after]
    return said
