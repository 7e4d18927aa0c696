"""Products with weights of 8 bits, for so few rows that reading the weights is what costs.

A number is `scale * q`, q of -127 to 127, with a scale in float32 for all of a row, or one in
float16 for 32 neighbours, as ggml's Q8_0 has it. Weights are the left operand, since the tensor
cores of a warp group take that one from registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .packed_linear import (
    PackedMatrix,
    multiply,
    multiply_builds,
    multiply_reference,
    widen,
    widen_build,
)

PLANES = 4  # groups of a tile: as many as a word has of 8 bits


class Int8Matrix(PackedMatrix):
    """Tiles are of 128 inputs, and the last one ends in zeros.

    A row has 32 words in each tile. Bits 8 j to 8 j + 7 of word p are 128 + q of input 128 tile +
    32 j + p, so that all the words' same bits make one group, and nothing has to be put in order.
    Scales are [out_features] of float32, or [4 * tiles, out_features] of float16.
    """

    @property
    def has_groups(self) -> bool:
        return self.scales.dim() == 2


@triton.jit
def widened8(words, PLANE: tl.constexpr):
    """Inputs 32 PLANE to 32 PLANE + 31 of a tile, without scales."""
    # Behind the exponent of 256 the 8 bits are 256 + 128 + q, which spares a slow conversion.
    more = ((((words >> (8 * PLANE)) & 255) << 15) | 0x43800000).to(tl.float32, bitcast=True)
    return more - 384.0


@triton.jit(do_not_specialize=["rows", "tiles"])
def int8_linear_kernel(
    x_ptr,
    words_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    rows,
    out_features,
    in_features,
    tiles,
    x_stride,
    BLOCK_M: tl.constexpr,  # at least rows
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Program (block of outputs, split): all rows, over its share of the inputs. What lies outside
    is read again at the edge instead of masked: its weights are zeros, or it is not stored."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    row = tl.arange(0, BLOCK_M)
    place = tl.arange(0, 32)
    near_column = tl.minimum(column, out_features - 1)
    near_row = tl.minimum(row, rows - 1).to(tl.int64)
    words_ptr += (near_column.to(tl.int64) * (tiles * 32))[:, None] + place[None, :]
    scales_ptr += near_column
    x_ptr += (near_row * x_stride)[None, :] + place[:, None]
    share = tl.cdiv(tiles, SPLITS)
    out = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for tile in range(split * share, tl.minimum((split + 1) * share, tiles)):
        words = tl.load(words_ptr + tile * 32)
        for plane in tl.static_range(4):
            group = tile * 4 + plane
            x = tl.load(x_ptr + tl.minimum(group * 32, in_features - 32))
            weights = widened8(words, plane)
            if HAS_GROUPS:
                scales = tl.load(scales_ptr + group.to(tl.int64) * out_features)
                weights *= scales.to(tl.float32)[:, None]
            out = tl.dot(weights.to(x.dtype), x, out, input_precision="ieee")
    if not HAS_GROUPS:
        out *= tl.load(scales_ptr)[:, None]
    if HAS_BIAS:
        out += tl.load(bias_ptr + near_column).to(tl.float32)[:, None]
    to = split * rows.to(tl.int64) * out_features + row[None, :] * out_features + column[:, None]
    inside = (row < rows)[None, :] & (column < out_features)[:, None]
    tl.store(out_ptr + to, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tiles"])
def int8_widen_kernel(
    words_ptr,
    scales_ptr,
    out_ptr,
    out_features,
    in_features,
    tiles,
    BLOCK_N: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
):
    """Program (block of outputs, tile): its numbers, one by one."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = tl.program_id(1)
    place = tl.arange(0, 32)
    inside = column < out_features
    wide_column = column.to(tl.int64)
    line = words_ptr + (wide_column * (tiles * 32))[:, None] + tile * 32 + place[None, :]
    words = tl.load(line, mask=inside[:, None], other=0)
    out_ptr += (wide_column * in_features)[:, None] + place[None, :]
    scales = scales_ptr + column
    for plane in tl.static_range(4):
        group = tile * 4 + plane
        if HAS_GROUPS:
            scales = scales_ptr + group.to(tl.int64) * out_features + column
        scale = tl.load(scales, mask=inside, other=0.0).to(tl.float32)
        weights = (widened8(words, plane) * scale[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + group * 32, weights, mask=inside[:, None] & (group * 32 < in_features))


def int8_linear(x: Tensor, weight: Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """x [rows, in_features], at most 64 rows at any stride, and bias [out_features]
    → [rows, out_features] like x. Weights take part in x's type, those with a scale for a row
    without it, which is exact; sums are in float32."""
    return multiply(int8_linear_kernel, x, weight, bias, HAS_GROUPS=weight.has_groups)


def int8_linear_reference(x: Tensor, weight: Int8Matrix, bias: Tensor | None = None) -> Tensor:
    if weight.has_groups:
        return multiply_reference(x, int8_widened_reference(weight, x.dtype), bias)
    out = x.float() @ _quants(weight).float().t() * weight.scales
    return (out if bias is None else out + bias.float()).to(x.dtype)


def int8_widened(weight: Int8Matrix, dtype: torch.dtype) -> Tensor:
    """The numbers that a weight stands for.  # [out_features, in_features]"""
    return widen(int8_widen_kernel, weight, dtype, HAS_GROUPS=weight.has_groups)


def int8_widened_reference(weight: Int8Matrix, dtype: torch.dtype) -> Tensor:
    scales = weight.scales.float()
    if weight.has_groups:
        scales = scales.repeat_interleave(32, dim=0)[: weight.in_features].t()
    else:
        scales = scales[:, None]
    return (_quants(weight) * scales).to(dtype)


def _quants(weight: Int8Matrix) -> Tensor:
    shifts = torch.arange(0, 32, 8, device=weight.words.device)[:, None]
    tiles = weight.words.view(weight.out_features, -1, 1, 32) >> shifts & 255
    return tiles.flatten(1)[:, : weight.in_features] - 128


BUILDS = (
    *multiply_builds(int8_linear_kernel, "*fp32", HAS_GROUPS=False),
    *multiply_builds(int8_linear_kernel, "*fp16", ", groups", HAS_GROUPS=True),
    widen_build(int8_widen_kernel, "*fp32", "any size", HAS_GROUPS=False),
    widen_build(int8_widen_kernel, "*fp16", "any size, groups", HAS_GROUPS=True),
)
