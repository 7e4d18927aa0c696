"""What the products with weights of few bits have in common: their launches, and their builds.

A kernel's program has all the rows and a block of outputs, over all the inputs or a share of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import triton
from torch import Tensor

from .attention_parts import capability_of
from .build import Build, wide_enough
from .split_sums import split_sums, splits_for

GROUP = 32  # neighbours that share a scale; inputs are a multiple of it
MOST_ROWS = 64  # beyond that arithmetic costs, and a plain product of wide weights is faster
_WIDEN = {"BLOCK_N": 32}
_WIDEN_OPTIONS = {"num_warps": 4}


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight [out_features, in_features] in words of 32 bits, 32 words for a tile of inputs."""

    words: Tensor  # [out_features, 32 * tiles] of int32
    scales: Tensor
    in_features: int

    @property
    def out_features(self) -> int:
        return self.words.shape[0]

    @property
    def tiles(self) -> int:
        return self.words.shape[1] // 32


def multiply(
    kernel: Any, x: Tensor, weight: PackedMatrix, bias: Tensor | None, **flags: bool
) -> Tensor:
    """x [rows, in_features], at most 64 rows at any stride, and bias [out_features]
    → [rows, out_features] like x. Weights take part in x's type, sums are in float32."""
    rows, in_features = x.shape
    assert rows <= MOST_ROWS
    assert in_features == weight.in_features
    out = x.new_empty((rows, weight.out_features))
    if not rows:
        return out
    constants, options = _tile(rows, capability_of(x.device))
    programs = triton.cdiv(weight.out_features, constants["BLOCK_N"])
    # A split costs its sums, written and read: worth less the more rows there are.
    most = min(weight.tiles, in_features // (16 * constants["BLOCK_M"]))
    splits = splits_for(programs, most, x.device)
    is_split = splits > 1
    into = out.new_empty((splits, *out.shape), dtype=torch.float32) if is_split else out
    kernel[(programs, splits)](
        x,
        weight.words,
        weight.scales,
        x if bias is None else bias,  # never read where there is none
        into,
        rows,
        weight.out_features,
        in_features,
        weight.tiles,
        x.stride(0),
        SPLITS=splits,
        HAS_BIAS=bias is not None and not is_split,
        **constants,
        **flags,
        **options,
    )
    return split_sums(into, bias, out) if is_split else out


def multiply_reference(x: Tensor, wide: Tensor, bias: Tensor | None) -> Tensor:
    """With weights in x's type already."""
    out = x.float() @ wide.float().t()
    return (out if bias is None else out + bias.float()).to(x.dtype)


def widen(kernel: Any, weight: PackedMatrix, dtype: torch.dtype, **flags: bool) -> Tensor:
    """The numbers that a weight stands for.  # [out_features, in_features]"""
    out = weight.words.new_empty((weight.out_features, weight.in_features), dtype=dtype)
    kernel[(triton.cdiv(weight.out_features, _WIDEN["BLOCK_N"]), weight.tiles)](
        weight.words,
        weight.scales,
        out,
        weight.out_features,
        weight.in_features,
        weight.tiles,
        **_WIDEN,
        **flags,
        **_WIDEN_OPTIONS,
    )
    return out


def _tile(rows: int, capability: int) -> tuple[dict[str, int], dict[str, int]]:
    """A program's constants and options for so many rows."""
    block_m = max(wide_enough(rows), 16)
    if block_m < MOST_ROWS:
        options = {"num_warps": 4, "num_stages": 3}
        return {"BLOCK_M": block_m, "BLOCK_N": 128}, options
    # The rows' tiles are in shared memory too, of which there is room for two; and the one-warp
    # instructions before sm_90 take more registers: 128 outputs at a time would spill.
    options = {"num_warps": 8, "num_stages": 2}
    return {"BLOCK_M": block_m, "BLOCK_N": 128 if capability >= 90 else 64}, options


def multiply_builds(kernel: Any, scales: str, suffix: str = "", **flags: bool) -> Iterator[Build]:
    integers = ("rows", "out_features", "in_features", "tiles", "x_stride")
    shapes = ((1, 8), (32, 8), (64, 8), (1, 1))
    for (rows, splits), capability in product(shapes, (80, 90)):
        constants, options = _tile(rows, capability)
        yield Build(
            name=f"{constants['BLOCK_M']} rows, {'split' if splits > 1 else 'bias'}{suffix}",
            kernel=kernel,
            types={
                **dict.fromkeys(("x_ptr", "bias_ptr"), "*bf16"),
                **{"words_ptr": "*i32", "scales_ptr": scales},
                "out_ptr": "*fp32" if splits > 1 else "*bf16",
                **dict.fromkeys(integers, "i32"),
            },
            constants={**constants, **flags, "SPLITS": splits, "HAS_BIAS": splits == 1},
            aligned=(
                *("x_ptr", "words_ptr", "scales_ptr", "bias_ptr", "out_ptr"),
                *("out_features", "in_features", "x_stride"),
            ),
            options=options,
            capabilities=(capability,),
            uses_tensor_cores=True,
            uses_warp_groups=capability >= 90,
        )


def widen_build(kernel: Any, scales: str, name: str, **flags: bool) -> Build:
    return Build(
        name=name,
        kernel=kernel,
        types={
            **{"words_ptr": "*i32", "scales_ptr": scales, "out_ptr": "*bf16"},
            **dict.fromkeys(("out_features", "in_features", "tiles"), "i32"),
        },
        constants={**_WIDEN, **flags},
        aligned=("words_ptr", "scales_ptr", "out_ptr", "out_features", "in_features"),
        options=_WIDEN_OPTIONS,
    )
