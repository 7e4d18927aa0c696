"""Random lives of an engine on the CUDA device's code, against the same requests one by one."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepahead import Engine, SamplingParams, StructuredOutput

from .paged_devices import one_thread  # noqa: F401
from .paged_engines import VOCAB, make_engine_folder, running

SEEDS = range(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_engine_folder(tmp_path_factory.mktemp("model"))


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


def draw_ask(rng: random.Random, shared: list[int]) -> Ask:
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
    if rng.random() < 0.2 and "no_repeat_ngram_size" not in wishes:
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


@pytest.mark.parametrize("seed", SEEDS)
async def test_company_and_the_way_things_go_change_nothing(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    shared = [rng.randrange(3, 250) for _ in range(20)]
    asks = [draw_ask(rng, shared) for _ in range(16)]
    delays = [rng.choice([0.0, 0.0, 0.02, 0.1]) for _ in asks]
    async with running(folder, is_paged=False) as engine:
        expected = [await live(engine, ask) for ask in asks]

    async with running(folder, **draw_options(rng)) as engine:
        said = await asyncio.gather(*map(live, [engine] * len(asks), asks, delays))
        await engine.generate([5, 6, 7], SamplingParams(max_tokens=8, ignore_eos=True))
        # By then the steps are done that those who left were still in.
        assert engine.stats().running == engine.stats().waiting == 0

    assert said == expected
