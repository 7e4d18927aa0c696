"""How many positions a processor's step takes on."""

from dataclasses import replace

import pytest

from stepahead.actors.batching.chunks import fair_chunks
from stepahead.gpu.cuda.shapes import shape_named
from stepahead.gpu.models.config import ModelConfig
from stepahead.gpu.pace import Pace, pace_of
from stepahead.gpu.roofline import cost_of
from stepahead.messages import frozen_ints

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

    assert tiles == Pace(step_tokens=512, fair_chunk=256, doubling_context=1536)
    assert words == Pace(step_tokens=224, fair_chunk=112, doubling_context=1536)


def test_no_step_is_so_short_that_reading_the_weights_is_most_of_it() -> None:
    shortest = Pace(step_tokens=128, fair_chunk=48, doubling_context=1536)

    assert pace_of(larger(100), 120e9) == pace_of(SMOLLM2_135M, 0) == shortest
    assert fair_chunks(frozen_ints([0, 700]), 48, 1536).tolist() == [32, 32]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_products_of_a_fair_chunk_take_no_longer_than_meant(times: int) -> None:
    config, rate = larger(times), 200e9

    seconds = pace_of(config, rate).fair_chunk * cost_of(config).body_params / rate

    assert 0.05 < seconds <= 0.1


def test_wide_layers_have_longer_contexts_before_attention_doubles_their_work() -> None:
    config = shape_named("llama-3.2-1b")
    cost = cost_of(config)

    context = pace_of(config, 120e9).doubling_context

    assert context is not None
    attention = 2 * cost.attention_width * context  # products, at half the rate of the others
    assert attention * 2 == pytest.approx(cost.body_params, rel=1e-3)
    assert context > 3 * 1536
