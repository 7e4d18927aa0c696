"""How many positions a processor's step takes on."""

from dataclasses import replace

import pytest

from stepahead.gpu.cuda.shapes import shape_named
from stepahead.gpu.models.config import ModelConfig
from stepahead.gpu.pace import USUAL, Pace, pace_of
from stepahead.gpu.roofline import cost_of

SMOLLM2_135M = replace(
    shape_named("llama-3.2-1b"),
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
)


def larger(times: int) -> ModelConfig:
    return replace(SMOLLM2_135M, num_layers=SMOLLM2_135M.num_layers * times)


def test_a_step_is_as_long_as_the_processor_is_fast() -> None:
    tiles, words = (pace_of(SMOLLM2_135M, rate) for rate in (300e9, 120e9))

    assert tiles == USUAL
    assert words == Pace(step_tokens=224, fair_chunk=64)


def test_no_step_is_so_short_that_reading_the_weights_is_most_of_it() -> None:
    assert pace_of(larger(100), 120e9) == Pace(step_tokens=128, fair_chunk=32)
    assert pace_of(SMOLLM2_135M, 0) == Pace(step_tokens=128, fair_chunk=32)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_products_of_a_fair_chunk_take_no_longer_than_meant(times: int) -> None:
    config, rate = larger(times), 200e9

    seconds = pace_of(config, rate).fair_chunk * cost_of(config).body_params / rate

    assert 0.03 < seconds <= 0.06
