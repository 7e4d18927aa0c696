"""Matrices of few bits for the GPU: from numbers, or from a GGUF file's blocks as they are.

Everything happens where the given tensors are.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..loading.dequantise import Q4_0, Q4_1, Q8_0, layout_of
from .int4_linear import Int4Matrix
from .int8_linear import Int8Matrix
from .packed_linear import GROUP, PackedMatrix

_WORDS = 32  # of a row in each tile

M = TypeVar("M", bound=PackedMatrix)


def quantised_4(values: Tensor) -> Int4Matrix:
    """Numbers [rows, cols] in 4 bits, with a scale and a minimum for 32 neighbours: within half a
    scale, which is a thirtieth of how far the 32 lie apart."""
    groups = values.float().view(len(values), -1, GROUP)
    minimum = groups.amin(dim=-1, keepdim=True).half()
    scale = ((groups.amax(dim=-1, keepdim=True) - minimum.float()) / 15).half()
    steps = torch.where(scale > 0, (groups - minimum.float()) / scale.float(), 0)
    quants = steps.round_().clamp_(0, 15).to(torch.uint8)
    return _packed_4(quants, scale, minimum)


def quantised_8(values: Tensor) -> Int8Matrix:
    """Numbers [rows, cols] in 8 bits, with a scale for each row: within half of it, which is a
    254th of the row's largest number."""
    wide = values.float()
    scale = wide.abs().amax(dim=1, keepdim=True) / 127
    quants = torch.where(scale > 0, wide / scale, 0).round_().to(torch.int16)
    return Int8Matrix(_words_8(quants), scale.squeeze(1), values.shape[1])


def has_packing(kind: int) -> bool:
    """Whether blocks of this ggml type can be multiplied as they are."""
    return kind in (Q4_0, Q4_1, Q8_0)


def packed_blocks(kind: int, data: Tensor, rows: int, cols: int) -> Int4Matrix | Int8Matrix:
    """A matrix whose rows ggml packed: the same numbers, in this layout.  # data: uint8, flat"""
    blocks = data.view(rows, cols // GROUP, layout_of(kind).num_bytes)
    scale = _half(blocks[..., 0:2])
    if kind == Q8_0:
        words = _words_8(blocks[..., 2:].contiguous().view(torch.int8).to(torch.int16))
        scales = F.pad(scale.squeeze(2), (0, words.shape[1] // 8 - cols // GROUP))
        return Int8Matrix(words, scales.t().contiguous(), cols)
    nibbles = blocks[..., -GROUP // 2 :]
    quants = torch.cat([nibbles & 15, nibbles >> 4], dim=-1)
    return _packed_4(quants, scale, _half(blocks[..., 2:4]) if kind == Q4_1 else scale * -8)


def joined(parts: Sequence[M]) -> M:
    """Matrices below one another. All have the same inputs and kind of scales."""
    words = torch.cat([part.words for part in parts])
    scales = torch.cat([part.scales for part in parts], dim=parts[0].scales.dim() - 1)
    return type(parts[0])(words, scales, parts[0].in_features)


def reordered(matrix: M, order: Tensor) -> M:
    """With row `order[n]` as row n."""
    scales = matrix.scales[..., order].contiguous()
    return type(matrix)(matrix.words[order], scales, matrix.in_features)


def _packed_4(quants: Tensor, scale: Tensor, minimum: Tensor) -> Int4Matrix:
    """Quants [rows, groups, 32] of uint8, scale and minimum [rows, groups, 1] of float16."""
    groups = quants.shape[1]
    words = _words(quants.flatten(1), bits=4)
    pairs = F.pad(torch.cat([scale, minimum], dim=-1), (0, 0, 0, words.shape[1] // 4 - groups))
    scales = pairs.view(torch.int32).squeeze(2).t().contiguous()  # the scale in the low half
    return Int4Matrix(words, scales, groups * GROUP)


def _words_8(quants: Tensor) -> Tensor:
    """Of quants [rows, …] of int16, as the numbers that they are above -128."""
    return _words((quants.flatten(1) + 128).to(torch.uint8), bits=8, padding=128)


def _words(quants: Tensor, *, bits: int, padding: int = 0) -> Tensor:
    """Quants [rows, cols] of uint8, each group of 32 in bits of its own.  # → [rows, 32 * tiles]"""
    rows, cols = quants.shape
    planes = 32 // bits
    tiles = -(-cols // (planes * _WORDS))
    quants = F.pad(quants, (0, tiles * planes * _WORDS - cols), value=padding)
    words = torch.zeros((rows, tiles, _WORDS), dtype=torch.int32, device=quants.device)
    for plane, part in enumerate(quants.view(rows, tiles, planes, _WORDS).unbind(dim=2)):
        words |= part.int() << (plane * bits)
    return words.flatten(1)


def _half(two_bytes: Tensor) -> Tensor:
    """The float16 numbers that bytes [..., 2] are.  # [..., 1]"""
    return two_bytes.contiguous().view(torch.float16)
