"""Products with weights of 4 and 8 bits: the kernels against their references."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .interpreter import (
    DTYPES,
    assert_close,
    int4_linear,
    int8_linear,
    packing,
    quantised,
    random_tensor,
    split_sums,
)


def grouped_8(values: Tensor) -> Any:
    """In 8 bits with a scale for 32 neighbours, by way of ggml's blocks."""
    groups = values.float().view(-1, 32)
    scale = (groups.abs().amax(dim=1, keepdim=True) / 127).half()
    quants = (groups / scale.float()).round().to(torch.int8)
    blocks = torch.cat([scale.view(torch.uint8), quants.view(torch.uint8)], dim=1)
    return packing.packed_blocks(8, blocks.flatten(), *values.shape)


PACK: dict[str, Callable[[Tensor], Any]] = {
    "int4": packing.quantised_4,
    "int8": packing.quantised_8,
    "int8 groups": grouped_8,
}
LINEAR: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "int4": (int4_linear.int4_linear, int4_linear.int4_linear_reference),
    "int8": (int8_linear.int8_linear, int8_linear.int8_linear_reference),
    "int8 groups": (int8_linear.int8_linear, int8_linear.int8_linear_reference),
}
WIDENED: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "int4": (int4_linear.int4_widened, int4_linear.int4_widened_reference),
    "int8": (int8_linear.int8_widened, int8_linear.int8_widened_reference),
    "int8 groups": (int8_linear.int8_widened, int8_linear.int8_widened_reference),
}
KINDS = tuple(PACK)
NEAR = {"int4": 0.08, "int8": 0.009, "int8 groups": 0.006}  # of normal numbers, in all


def numbers(out_features: int, in_features: int) -> Tensor:
    """Weights as large as a trained matrix has them, each row on a level of its own."""
    values = random_tensor(1, out_features, in_features, dtype=torch.float32)
    return values * 0.05 + torch.linspace(-0.02, 0.02, out_features)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"),
    [(1, 1, 32), (16, 130, 64), (17, 40, 288), (3, 128, 544), (64, 5, 1056)],
)
def test_products_are_those_of_the_reference(
    rows: int, out_features: int, in_features: int, kind: str, dtype: torch.dtype
) -> None:
    weight = PACK[kind](numbers(out_features, in_features))
    x = random_tensor(2, rows, in_features, dtype=dtype, padding=5)
    bias = random_tensor(3, out_features, dtype=dtype)
    kernel, reference = LINEAR[kind]

    for added in (None, bias):
        given = kernel(x, weight, added)

        assert given.is_contiguous()
        assert_close(given, reference(x, weight, added), ulps=8 if dtype == torch.float32 else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_no_launch(kind: str) -> None:
    weight = PACK[kind](numbers(3, 64))

    assert LINEAR[kind][0](torch.empty(0, 64), weight).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 32), (33, 288), (7, 512)])
def test_widened_weights_are_those_of_the_reference(
    shape: tuple[int, int], kind: str, dtype: torch.dtype
) -> None:
    weight = PACK[kind](numbers(*shape))
    kernel, reference = WIDENED[kind]

    given = kernel(weight, dtype)

    assert given.shape == shape
    assert_close(given, reference(weight, dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_in_few_bits_is_near_the_exact_one(kind: str) -> None:
    """Weights are off by half a step at most and in no direction, and so are sums of many."""
    values = numbers(48, 1024)
    x = random_tensor(2, 4, 1024, dtype=torch.float32)
    exact = x.double() @ values.t().double()

    given = LINEAR[kind][0](x, PACK[kind](values)).double()

    assert (given - exact).norm() / exact.norm() < NEAR[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_beyond_a_few_rows_torch_multiplies_with_widened_weights(kind: str) -> None:
    weight = PACK[kind](numbers(20, 288))
    x = random_tensor(2, 65, 288, dtype=torch.bfloat16)

    many, few = quantised.linear(x, weight), quantised.linear(x[:64], weight)

    assert_close(many, quantised.linear_reference(x, weight), ulps=2)
    assert_close(few, many[:64], ulps=2)


def test_a_plain_matrix_is_multiplied_plainly() -> None:
    weight, x = numbers(20, 32), random_tensor(2, 5, 32, dtype=torch.float32)

    assert torch.equal(quantised.linear(x, weight), x @ weight.t())
    assert quantised.shape_of(weight) == (20, 32)
    assert quantised.shape_of(packing.quantised_4(weight)) == (20, 32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_parts_are_summed_in_their_order(has_bias: bool, dtype: torch.dtype) -> None:
    parts = random_tensor(1, 4, 3, 1030, dtype=torch.float32)
    bias = random_tensor(2, 1030, dtype=dtype) if has_bias else None
    out, expected = (torch.empty(3, 1030, dtype=dtype) for _ in range(2))

    assert split_sums.split_sums(parts, bias, out) is out
    assert_close(out, split_sums.split_sums_reference(parts, bias, expected))


def test_splits_fill_the_machine_and_no_more_than_allowed() -> None:
    cpu = torch.device("cpu")  # as if it had two multiprocessors, so four programs fill it

    assert [split_sums.splits_for(programs, 64, cpu) for programs in (1, 2, 3, 4, 99)] == [
        4, 2, 2, 1, 1,
    ]  # fmt: skip
    assert [split_sums.splits_for(1, most, cpu) for most in (0, 1, 2, 3)] == [1, 1, 2, 2]
