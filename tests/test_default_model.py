"""The default model in float32: greedy ids equal transformers' however the requests are run."""

from collections.abc import Iterator

import pytest

from .default_model import (
    PROMPTS,
    SMALL_POOL,
    EngineModel,
    Factors,
    make_reference,
    one_at_a_time,
    pairwise,
    reference_ids,
    run_engine,
)

MAX_TOKENS = 16


@pytest.fixture(scope="module")
def model() -> Iterator[EngineModel]:
    loaded = EngineModel()
    yield loaded
    loaded.device.close()


@pytest.fixture(scope="module")
def prompts(model: EngineModel) -> list[list[int]]:
    return [model.tokenizer.encode(prompt) for prompt in PROMPTS[:5]]


@pytest.fixture(scope="module")
def expected(model: EngineModel, prompts: list[list[int]]) -> list[list[int]]:
    reference = make_reference(model)
    return [reference_ids(reference, prompt, MAX_TOKENS) for prompt in prompts]


@pytest.mark.parametrize("factors", dict.fromkeys([*one_at_a_time(), *pairwise()]), ids=str)
async def test_greedy_ids_equal_those_of_transformers(
    model: EngineModel,
    prompts: list[list[int]],
    expected: list[list[int]],
    factors: Factors,
) -> None:
    ids, preemptions = await run_engine(model, factors, prompts, MAX_TOKENS)

    assert ids == expected
    if factors.at_once and factors.num_blocks == SMALL_POOL:
        assert preemptions > 0
