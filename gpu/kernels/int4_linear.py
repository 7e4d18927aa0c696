"""Products with weights of 4 bits, for so few rows that reading the weights is what costs.

A number is `scale * q + minimum`, q of 0 to 15, with a scale and a minimum in float16 for 32
neighbours: what ggml's Q4_1 says, and Q4_0, whose minimum is -8 scales. Weights are the left
operand, since the tensor cores of a warp group take that one from registers.
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

PLANES = 8  # groups of a tile: as many as a word has of 4 bits


class Int4Matrix(PackedMatrix):
    """Tiles are of 256 inputs, and the last one ends in zeros.

    A row has 32 words in each tile. Bits 4 j to 4 j + 3 of word p are q of input 256 tile +
    32 j + p, so that all the words' same bits make one group, and nothing has to be put in order.
    Scales are [8 * tiles, out_features] of int32: a float16 scale, and the minimum above it.
    """


@triton.jit
def widened4(words, scales, PLANE: tl.constexpr):
    """One group of each row in float32.  # words [n, 32], scales [n] → [n, 32]"""
    scale = (scales & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    minimum = (scales >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    # Behind the exponent of 16 the 4 bits are 16 + q, which spares a slow conversion.
    sixteen_more = ((((words >> (4 * PLANE)) & 15) << 19) | 0x41800000).to(tl.float32, bitcast=True)
    return sixteen_more * scale[:, None] + (minimum - 16.0 * scale)[:, None]


@triton.jit(do_not_specialize=["rows", "tiles"])
def int4_linear_kernel(
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
        for plane in tl.static_range(8):
            group = tile * 8 + plane
            x = tl.load(x_ptr + tl.minimum(group * 32, in_features - 32))
            scales = tl.load(scales_ptr + group.to(tl.int64) * out_features)
            weights = widened4(words, scales, plane).to(x.dtype)
            out = tl.dot(weights, x, out, input_precision="ieee")
    if HAS_BIAS:
        out += tl.load(bias_ptr + near_column).to(tl.float32)[:, None]
    to = split * rows.to(tl.int64) * out_features + row[None, :] * out_features + column[:, None]
    inside = (row < rows)[None, :] & (column < out_features)[:, None]
    tl.store(out_ptr + to, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tiles"])
def int4_widen_kernel(
    words_ptr, scales_ptr, out_ptr, out_features, in_features, tiles, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Program (block of outputs, tile): its numbers, one by one."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = tl.program_id(1)
    place = tl.arange(0, 32)
    inside = column < out_features
    wide_column = column.to(tl.int64)
    line = words_ptr + (wide_column * (tiles * 32))[:, None] + tile * 32 + place[None, :]
    words = tl.load(line, mask=inside[:, None], other=0)
    out_ptr += (wide_column * in_features)[:, None] + place[None, :]
    for plane in tl.static_range(8):
        group = tile * 8 + plane
        scales = tl.load(
            scales_ptr + group.to(tl.int64) * out_features + column, mask=inside, other=0
        )
        weights = widened4(words, scales, plane).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + group * 32, weights, mask=inside[:, None] & (group * 32 < in_features))


def int4_linear(x: Tensor, weight: Int4Matrix, bias: Tensor | None = None) -> Tensor:
    """x [rows, in_features], at most 64 rows at any stride, and bias [out_features]
    → [rows, out_features] like x. Weights take part in x's type, sums are in float32."""
    return multiply(int4_linear_kernel, x, weight, bias)


def int4_linear_reference(x: Tensor, weight: Int4Matrix, bias: Tensor | None = None) -> Tensor:
    return multiply_reference(x, int4_widened_reference(weight, x.dtype), bias)


def int4_widened(weight: Int4Matrix, dtype: torch.dtype) -> Tensor:
    """The numbers that a weight stands for.  # [out_features, in_features]"""
    return widen(int4_widen_kernel, weight, dtype)


def int4_widened_reference(weight: Int4Matrix, dtype: torch.dtype) -> Tensor:
    rows = weight.out_features
    shifts = torch.arange(0, 32, 4, device=weight.words.device)[:, None]
    quants = weight.words.view(rows, -1, 1, 32) >> shifts & 15  # [rows, tiles, 8, 32]
    pairs = weight.scales.t().contiguous().view(torch.float16).float()
    scale, minimum = pairs.view(rows, -1, PLANES, 2, 1).unbind(dim=3)
    return (quants * scale + minimum).flatten(1)[:, : weight.in_features].to(dtype)


BUILDS = (
    *multiply_builds(int4_linear_kernel, "*i32"),
    widen_build(int4_widen_kernel, "*i32", "any size"),
)
