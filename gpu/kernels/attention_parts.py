"""What all attention kernels are made of: rows over a block table, and the softmax of a tile."""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import wide_enough

NEVER_ALIGNED = ("starts_ptr", "lengths_ptr", "slots_ptr", "block_table_ptr")
"""Pointers into staged columns. They may begin anywhere: a kernel that were compiled for their
alignment would be compiled anew, in the middle of serving, whenever it changes."""


@dataclass(frozen=True, slots=True)
class SharedRuns:
    """Groups of a step's rows of one token whose first blocks are the same ones.

    A tile is so many rows of one group that a program takes them together; positions of 0 make it
    padding. What a group shares lies before the tokens of its rows.
    """

    lengths: Tensor  # [rows] of int32: positions that a row shares, from the first one on
    order: Tensor  # [rows] of int32: the rows that share any, group after group
    tiles: Tensor  # [tiles, 4] of int32: first place in the order, rows, a row's slot, positions

    @classmethod
    def of(cls, words: Tensor, num_rows: int) -> "SharedRuns":
        """Views of one piece: lengths and order of so many rows, then tiles."""
        return cls(
            words[:num_rows], words[num_rows : 2 * num_rows], words[2 * num_rows :].view(-1, 4)
        )


@dataclass(frozen=True, slots=True)
class PagedRows:
    """A step's rows: whose tokens they are, and where their keys and values lie."""

    starts: Tensor  # [rows + 1] of int32: the first token of each row, and the end
    lengths: Tensor  # [rows] of int32: positions a row has, this step's tokens included
    slots: Tensor  # [rows] of int32: lines of the block table; -1 is padding
    block_table: Tensor  # [slots, blocks] of int32
    block_size: int
    longest: int  # tokens that no row has more of
    has_singles: bool = False  # whether beside longer rows there are some of one token
    shared: SharedRuns | None = None  # rows of one token that are better off together


def head_constants(query: Tensor, keys: Tensor, block_size: int) -> dict[str, int]:
    """Constants of query [tokens, heads, dim] over keys [rows, kv_heads, dim]."""
    return shape_constants(query.shape[1], keys.shape[1], keys.shape[2], block_size)


def shape_constants(heads: int, kv_heads: int, dim: int, block_size: int) -> dict[str, int]:
    group = heads // kv_heads
    return {"GROUP": group, "DIM": dim, "WIDTH": max(wide_enough(dim), 16), "PAGE": block_size}


def keys_of_tile(width: int) -> int:
    """How many keys a program looks at together: for heads wider than 128 shared memory has room
    for half as many."""
    return 64 if width <= 128 else 32


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


def pipelined(query: torch.dtype, num_warps: int) -> dict[str, int]:
    """Options of a kernel whose loop over keys of 16 bits or less must not wait for memory.

    Where keys lie is read from a table, a load before the load: with fewer than five stages the
    keys of a tile are asked for only when the last tile is done with. In float32, which is for
    checking, there is no room for that.
    """
    if query == torch.float32:
        return {"num_warps": 8, "num_stages": 3}
    return {"num_warps": num_warps, "num_stages": 5}


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


@triton.jit
def share_of(low, high, split, splits, least, BLOCK_N: tl.constexpr):
    """The positions that a split looks at: whole tiles, as equal as they can be, at least so many
    if there are any."""
    size = tl.maximum(tl.cdiv(tl.cdiv(high - low, BLOCK_N), splits), least) * BLOCK_N
    begin = low + split * size
    return begin, tl.minimum(begin + size, high)


@triton.jit
def attended(
    query,
    begin,
    end,
    keys_ptr,
    values_ptr,
    table_ptr,
    kv_stride,
    scale,
    softcap,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """The softmax over positions that every line of the query sees whole, not yet divided."""
    lane = tl.arange(0, WIDTH)
    is_lane = lane < DIM
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for first_key in range(begin, end, BLOCK_N):
        position = first_key + tl.arange(0, BLOCK_N)
        is_key = position < end
        at = kv_rows(table_ptr, position, is_key, PAGE) * kv_stride
        keys = tl.load(
            keys_ptr + at[None, :] + lane[:, None],
            mask=is_key[None, :] & is_lane[:, None],
            other=0.0,
        ).to(query.dtype)
        values = tl.load(
            values_ptr + at[:, None] + lane[None, :],
            mask=is_key[:, None] & is_lane[None, :],
            other=0.0,
        ).to(query.dtype)
        score = scores_of(query, keys, scale, softcap, HAS_SOFTCAP)
        score = tl.where(is_key[None, :], score, float("-inf"))
        best, total, out = folded(score, values, best, total, out)
    return best, total, out
