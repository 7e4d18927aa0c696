"""What both attention kernels are made of: rows over a block table, and the softmax of a tile."""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import wide_enough


@dataclass(frozen=True, slots=True)
class PagedRows:
    """A step's rows: whose tokens they are, and where their keys and values lie."""

    starts: Tensor  # [rows + 1] of int32: the first token of each row, and the end
    lengths: Tensor  # [rows] of int32: positions a row has, this step's tokens included
    slots: Tensor  # [rows] of int32: lines of the block table; -1 is padding
    block_table: Tensor  # [slots, blocks] of int32
    block_size: int
    longest: int  # tokens that no row has more of


def head_constants(query: Tensor, keys: Tensor, block_size: int) -> dict[str, int]:
    """Constants of query [tokens, heads, dim] over keys [rows, kv_heads, dim]."""
    return shape_constants(query.shape[1], keys.shape[1], keys.shape[2], block_size)


def shape_constants(heads: int, kv_heads: int, dim: int, block_size: int) -> dict[str, int]:
    group = heads // kv_heads
    return {"GROUP": group, "DIM": dim, "WIDTH": max(wide_enough(dim), 16), "PAGE": block_size}


@cache
def capability_of(device: torch.device) -> int:
    """The compute capability that kernels are configured for; 90 in the interpreter."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def keeps_e4m3(device: torch.device) -> bool:
    """Whether keys and values can be kept as float8_e4m3fn: GPUs before sm_89 cannot convert it,
    and kernels for it are not compiled there."""
    return capability_of(device) >= 89


@triton.jit
def row_of(starts_ptr, stretch, num_rows, BLOCK_Q: tl.constexpr):
    """The last row that begins at or before a stretch, by halving."""
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // BLOCK_Q + middle <= stretch:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def kv_rows(table_ptr, position, is_visible, PAGE: tl.constexpr):
    """Where the keys and values of positions lie: rows of the memory, as int64."""
    block = tl.load(table_ptr + position // PAGE, mask=is_visible, other=0)
    return block.to(tl.int64) * PAGE + position % PAGE  # more than 2**31 numbers in all


@triton.jit
def scores_of(query, keys, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Scores in powers of two.  # query [m, dim], keys [dim, n] → [m, n]"""
    score = tl.dot(query, keys, input_precision="ieee")  # of float32 too, not in TF32
    if HAS_SOFTCAP:
        # tanh(x) = 1 - 2 / (e**2x + 1), and e**2x is a power of two: 2 log2(e) is 2.885…
        power = tl.exp2(score * (scale / softcap * 2.8853900817779268))
        return softcap * 1.4426950408889634 * (1.0 - 2.0 / (power + 1.0))
    return score * (scale * 1.4426950408889634)  # log2(e)


@triton.jit
def folded(score, values, best, total, out):
    """Take a tile into the running softmax: largest score, sum of weights, weighted values."""
    new_best = tl.maximum(best, tl.max(score, 1))
    # A row that has seen nothing yet must not compute infinity minus infinity.
    base = tl.where(new_best == float("-inf"), 0.0, new_best)
    weight = tl.exp2(score - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weight, 1)
    product = tl.dot(weight.to(values.dtype), values, input_precision="ieee")
    return new_best, total, out * shrink[:, None] + product
