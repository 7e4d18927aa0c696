"""Slow sweeps, by `make check-model`: every combination of factors, 20 prompts of 64 tokens."""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig

from .default_model import (
    PROMPTS,
    SMALL_POOL,
    EngineModel,
    Factors,
    full_product,
    reference_ids,
    run_engine,
)
from .test_batcher_random import live_and_check

MAX_TOKENS = 64
POOL = 2 * SMALL_POOL  # for four times the tokens of the quick test

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def model() -> Iterator[EngineModel]:
    loaded = EngineModel()
    yield loaded
    loaded.device.close()


@pytest.fixture(scope="module")
def prompts(model: EngineModel) -> list[list[int]]:
    return [model.tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(model: EngineModel, prompts: list[list[int]]) -> list[list[int]]:
    """By transformers' own reading of the file, which shares nothing with ours."""
    reference = AutoModelForCausalLM.from_pretrained(
        str(model.path.parent),
        gguf_file=model.path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()
    return [reference_ids(reference, prompt, MAX_TOKENS) for prompt in prompts]


@pytest.mark.parametrize("factors", full_product(small_pool=POOL), ids=str)
async def test_greedy_ids_equal_those_of_transformers_in_every_combination(
    model: EngineModel,
    prompts: list[list[int]],
    expected: list[list[int]],
    factors: Factors,
) -> None:
    ids, preemptions = await run_engine(model, factors, prompts, MAX_TOKENS)

    assert ids == expected
    if factors.at_once and factors.num_blocks == POOL:
        assert preemptions > 0


@pytest.mark.parametrize("seed", range(1_000, 3_000))
def test_many_more_random_lives_of_the_ledger(seed: int) -> None:
    live_and_check(seed)
