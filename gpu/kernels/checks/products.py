"""Checks of products with weights of few bits, and of those weights widened."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import int4_linear, int8_linear, packing, split_sums
from .check import Bench, Check, Pair

_HALVES = (torch.float16, torch.bfloat16)  # weights of few bits are for these


def _grouped_8(values: Tensor) -> int8_linear.Int8Matrix:
    """In 8 bits with a scale for 32 neighbours, by way of ggml's blocks."""
    groups = values.view(-1, 32)
    scale = (groups.abs().amax(dim=1, keepdim=True) / 127).half()
    quants = (groups / scale.float()).round().to(torch.int8)
    blocks = torch.cat([scale.view(torch.uint8), quants.view(torch.uint8)], dim=1)
    matrix = packing.packed_blocks(8, blocks.flatten(), *values.shape)
    assert isinstance(matrix, int8_linear.Int8Matrix)
    return matrix


def _multiplies(
    bench: Bench,
    pack: Callable[[Tensor], Any],
    functions: tuple[Callable[..., Tensor], ...],
    shape: tuple[int, int, int],
) -> Iterator[Pair]:
    rows, out_features, in_features = shape
    weight = pack(bench.random(1, out_features, in_features, scale=0.05).float())
    there = type(weight)(bench.there(weight.words), bench.there(weight.scales), in_features)
    x, bias = bench.random(2, rows, in_features, padding=8), bench.random(3, 1, out_features)[0]
    multiply, multiply_reference, widen, widen_reference = functions
    given = multiply(bench.there(x), there, bench.there(bias))
    yield Pair(given, multiply_reference(x, weight, bias), ulps=2)
    yield Pair(widen(there, bench.dtype), widen_reference(weight, bench.dtype))


def _checks() -> Iterator[Check]:
    four = (
        int4_linear.int4_linear,
        int4_linear.int4_linear_reference,
        int4_linear.int4_widened,
        int4_linear.int4_widened_reference,
    )
    eight = (
        int8_linear.int8_linear,
        int8_linear.int8_linear_reference,
        int8_linear.int8_widened,
        int8_linear.int8_widened_reference,
    )
    kernels_of_4 = (int4_linear.int4_linear_kernel, int4_linear.int4_widen_kernel)
    kernels_of_8 = (int8_linear.int8_linear_kernel, int8_linear.int8_widen_kernel)
    for name, pack, functions, kernels in (
        ("4 bits", packing.quantised_4, four, kernels_of_4),
        ("8 bits", packing.quantised_8, eight, kernels_of_8),
        ("8 bits in groups", _grouped_8, eight, kernels_of_8),
    ):
        for shape in ((1, 200, 1_056), (17, 40, 288), (64, 130, 512)):
            yield Check(
                f"product with {name}, {shape[0]} rows, {shape[1]} of {shape[2]:,}",
                partial(_multiplies, pack=pack, functions=functions, shape=shape),
                (*kernels, split_sums.split_sums_kernel),
                _HALVES,
            )


CHECKS = tuple(_checks())
