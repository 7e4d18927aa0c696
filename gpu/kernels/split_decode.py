"""Decode attention for few rows: each row's keys are split among programs, and their parts merged.

A row and a key head alone would leave most of a GPU idle until there are hundreds of them. The
grid depends on no length, so that a graph can be captured once and replayed at any.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention import Scores
from .attention_parts import (
    PagedRows,
    folded,
    head_constants,
    kv_rows,
    scores_of,
    shape_constants,
)
from .build import Build, wide_enough

SPLITS = 16
_BLOCK_N = 64
_OPTIONS = {"num_warps": 4, "num_stages": 3}


@triton.jit
def split_decode_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    parts_ptr,
    best_ptr,
    total_ptr,
    lengths_ptr,
    slots_ptr,
    block_table_ptr,
    kv_scales_ptr,
    query_stride,
    kv_stride,
    table_stride,
    scale,
    softcap,
    window,
    GROUP: tl.constexpr,  # query heads of a key head
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,  # at least DIM
    PAGE: tl.constexpr,  # positions of a block
    BLOCK_M: tl.constexpr,  # at least GROUP, and what a tensor core wants
    BLOCK_N: tl.constexpr,  # keys looked at together
    SPLITS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_KV_SCALES: tl.constexpr,
):
    """Program (row, key head, split): softmax and weighted values of its share of the keys."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    slot = tl.load(slots_ptr + row)
    length = tl.load(lengths_ptr + row)
    if slot < 0:
        return
    begin, end = _share(length, window, split, BLOCK_N, SPLITS)
    if begin >= end:
        return
    line = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, WIDTH)
    head = kv_head * GROUP + line
    is_line = line < GROUP
    is_lane = lane < DIM
    inside = is_line[:, None] & is_lane[None, :]
    place = query_ptr + row.to(tl.int64) * query_stride + (head * DIM)[:, None] + lane[None, :]
    query = tl.load(place, mask=inside, other=0.0)
    table_ptr = block_table_ptr + slot.to(tl.int64) * table_stride
    keys_ptr += kv_head * DIM
    values_ptr += kv_head * DIM
    if HAS_KV_SCALES:
        scale *= tl.load(kv_scales_ptr + kv_head)

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
    if HAS_KV_SCALES:
        out *= tl.load(kv_scales_ptr + tl.num_programs(1) + kv_head)

    part = (row * tl.num_programs(1) * GROUP + head) * SPLITS + split
    tl.store(best_ptr + part, best, mask=is_line)
    tl.store(total_ptr + part, total, mask=is_line)
    tl.store(parts_ptr + part.to(tl.int64)[:, None] * DIM + lane[None, :], out, mask=inside)


@triton.jit
def merge_kernel(
    parts_ptr,
    best_ptr,
    total_ptr,
    out_ptr,
    lengths_ptr,
    slots_ptr,
    sinks_ptr,
    window,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Program (row, query head): the splits' parts, weighted by what each saw."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    if tl.load(slots_ptr + row) < 0:
        return
    split = tl.arange(0, SPLITS)
    begin, end = _share(tl.load(lengths_ptr + row), window, split, BLOCK_N, SPLITS)
    is_used = begin < end  # the others wrote nothing
    line = row * tl.num_programs(1) + head
    part = line * SPLITS + split
    best = tl.load(best_ptr + part, mask=is_used, other=float("-inf"))
    total = tl.load(total_ptr + part, mask=is_used, other=0.0)
    largest = tl.max(best, 0)
    sink = 0.0
    if HAS_SINKS:
        logit = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634  # log2(e)
        largest = tl.maximum(largest, logit)
        sink = tl.exp2(logit - largest)
    weight = tl.where(is_used, tl.exp2(best - largest), 0.0)
    lane = tl.arange(0, WIDTH)
    is_lane = lane < DIM
    parts = tl.load(
        parts_ptr + part.to(tl.int64)[:, None] * DIM + lane[None, :],
        mask=is_used[:, None] & is_lane[None, :],
        other=0.0,
    )
    out = tl.sum(parts * weight[:, None], 0) / tl.maximum(tl.sum(total * weight, 0) + sink, 1e-30)
    place = out_ptr + line.to(tl.int64) * DIM + lane
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=is_lane)


@triton.jit
def _share(length, window, split, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """The positions that a split looks at: whole tiles, as equal as they can be. A window of 0
    is none."""
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    size = tl.cdiv(tl.cdiv(length - low, BLOCK_N), SPLITS) * BLOCK_N
    begin = low + split * size
    return begin, tl.minimum(begin + size, length)


def split_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    *,
    splits: int = SPLITS,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Query [rows, heads, dim], one token for each row and its heads next to each other, over
    keys and values [memory rows, kv_heads, dim], kept as `write_cache` does → like query. What it
    gives for padding is undefined. Splits are a power of two."""
    num_rows, heads, dim = query.shape
    out = query.new_empty(query.shape)
    if not num_rows:
        return out
    constants = _constants(head_constants(query, keys, rows.block_size), splits)
    parts = query.new_empty((num_rows, heads, splits, dim), dtype=torch.float32)
    sums = query.new_empty((2, num_rows, heads, splits), dtype=torch.float32)
    window = scores.window or 0
    split_decode_kernel[(num_rows, keys.shape[1], splits)](
        query,
        keys,
        values,
        parts,
        sums[0],
        sums[1],
        rows.lengths,
        rows.slots,
        rows.block_table,
        query if kv_scales is None else kv_scales,  # never read where there are none
        query.stride(0),
        keys.stride(0),
        rows.block_table.stride(0),
        scores.scale,
        scores.softcap or 0.0,
        window,
        **constants,
        HAS_SOFTCAP=scores.softcap is not None,
        HAS_KV_SCALES=kv_scales is not None,
        **_OPTIONS,
    )
    merge_kernel[(num_rows, heads)](
        parts,
        sums[0],
        sums[1],
        out,
        rows.lengths,
        rows.slots,
        query if scores.sinks is None else scores.sinks,  # likewise
        window,
        **_merge_constants(constants),
        HAS_SINKS=scores.sinks is not None,
        num_warps=4,
    )
    return out


def _constants(shape: dict[str, int], splits: int) -> dict[str, int]:
    block_m = max(wide_enough(shape["GROUP"]), 16)
    return {**shape, "BLOCK_M": block_m, "BLOCK_N": _BLOCK_N, "SPLITS": splits}


def _merge_constants(constants: dict[str, int]) -> dict[str, int]:
    return {name: constants[name] for name in ("DIM", "WIDTH", "BLOCK_N", "SPLITS")}


def _builds() -> Iterator[Build]:
    constants = _constants(shape_constants(32, 8, 128, 16), SPLITS)
    floats = dict.fromkeys(("parts_ptr", "best_ptr", "total_ptr"), "*fp32")
    tables = dict.fromkeys(("lengths_ptr", "slots_ptr"), "*i32")
    for extra, kept in (("", "*bf16"), (", soft-cap", "*bf16"), (", e4m3", "*fp8e4nv")):
        is_e4m3 = kept != "*bf16"
        yield Build(
            name=f"32 + 8 heads of 128{extra}",
            kernel=split_decode_kernel,
            types={
                "query_ptr": "*bf16",
                **dict.fromkeys(("keys_ptr", "values_ptr"), kept),
                "kv_scales_ptr": "*fp32",
                **floats,
                **tables,
                "block_table_ptr": "*i32",
                **dict.fromkeys(("query_stride", "kv_stride"), "i32"),
                **dict.fromkeys(("table_stride", "window"), "i32"),
                **dict.fromkeys(("scale", "softcap"), "fp32"),
            },
            constants={
                **constants,
                "HAS_SOFTCAP": extra == ", soft-cap",
                "HAS_KV_SCALES": is_e4m3,
            },
            aligned=(
                *("query_ptr", "keys_ptr", "values_ptr", "parts_ptr"),
                *("query_stride", "kv_stride"),
            ),
            options=_OPTIONS,
            capabilities=(90,) if is_e4m3 else (80, 90),
            uses_tensor_cores=True,
        )
    yield Build(
        name="32 + 8 heads of 128",
        kernel=merge_kernel,
        types={
            **floats,
            **tables,
            **dict.fromkeys(("out_ptr", "sinks_ptr"), "*bf16"),
            "window": "i32",
        },
        constants={**_merge_constants(constants), "HAS_SINKS": True},
        aligned=("parts_ptr", "out_ptr"),
        options={"num_warps": 4},
    )


BUILDS = tuple(_builds())
