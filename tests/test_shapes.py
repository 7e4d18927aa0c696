"""Named shapes: models with random weights that need no files."""

import pytest
import torch

from stepahead.gpu.cuda.shapes import (
    SHAPES,
    RandomWeights,
    open_shape,
    shape_named,
    weight_shapes,
)
from stepahead.gpu.models.config import ModelConfig
from stepahead.gpu.roofline import cost_of
from stepahead.messages import ConfigError

TINY = shape_named("tiny")


def read(config: ModelConfig, name: str, seed: int = 0) -> torch.Tensor:
    source = RandomWeights(config, seed)
    out = torch.zeros(source.shape(name))
    source.read(name, out)
    return out


def test_a_shape_builds_a_decoder_that_takes_every_tensor() -> None:
    model = open_shape(TINY, torch.float32)

    decoder = model.build(64)  # raises for a tensor that is missing or left over
    logits = decoder.head(torch.ones(3, TINY.hidden_size))

    assert logits.shape == (3, TINY.vocab_size)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", SHAPES)
def test_the_tensors_of_a_shape_hold_the_parameters_that_its_cost_counts(name: str) -> None:
    config = SHAPES[name]

    held = sum(torch.Size(shape).numel() for shape in weight_shapes(config).values())

    assert held == cost_of(config).num_params


def test_weights_are_those_of_their_seed_and_name() -> None:
    name, other = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"

    given = read(TINY, name)

    assert torch.equal(given, read(TINY, name))
    assert not torch.equal(given, read(TINY, name, seed=1))
    assert not torch.equal(given, read(TINY, other))


def test_weights_are_small_normal_numbers_and_those_of_norms_are_around_one() -> None:
    table = read(TINY, "model.embed_tokens.weight")
    norm = read(TINY, "model.layers.0.self_attn.q_norm.weight")

    assert table.mean().abs() < 0.001
    assert 0.019 < table.std() < 0.021
    assert (table != 0).all()
    assert (norm - 1).abs().max() < 0.1


def test_an_unknown_shape_is_a_mistake_that_names_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"'qwen' is no shape .* qwen3-0.6b, .* are"):
        shape_named("qwen")
