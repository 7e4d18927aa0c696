"""Decode attention: each row's keys are split among programs, and their parts merged.

A row and a key head alone would leave most of a GPU idle until there are hundreds of them, and one
row much longer than the others would keep them all waiting. The grid depends on no length, so that
a graph can be captured once and replayed at any.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention import Scores
from .attention_parts import (
    NEVER_ALIGNED,
    PagedRows,
    attended,
    head_constants,
    keys_of_tile,
    pipelined,
    shape_constants,
    share_of,
)
from .build import Build, wide_enough

SPLITS = 16
PADDING = 4  # numbers behind a part's values: its largest score, its sum of weights, alignment
_NUM_WARPS = 4


@dataclass(frozen=True, slots=True)
class Parts:
    """What every split of every row saw, for each query head."""

    numbers: Tensor  # [rows, heads, splits, dim + PADDING] of float32
    least: int  # tiles of a split that has any

    @property
    def splits(self) -> int:
        return self.numbers.shape[2]

    @classmethod
    def empty(cls, query: Tensor, num_rows: int, splits: int, least: int) -> "Parts":
        """Room for parts of query [tokens, heads, dim]."""
        shape = (num_rows, query.shape[1], splits, query.shape[2] + PADDING)
        return cls(query.new_empty(shape, dtype=torch.float32), least)


@triton.jit(
    do_not_specialize=("table_stride", "window", "splits", "least"),
    do_not_specialize_on_alignment=(*NEVER_ALIGNED, "shared_ptr"),
)
def split_decode_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    parts_ptr,
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    shared_ptr,
    block_table_ptr,
    kv_scales_ptr,
    query_stride,
    kv_stride,
    table_stride,
    scale,
    softcap,
    window,
    splits,  # this and the next are no constants: they change with the number of rows
    least,  # tiles of keys that a split has at least
    GROUP: tl.constexpr,  # query heads of a key head
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,  # at least DIM
    PAGE: tl.constexpr,  # positions of a block
    BLOCK_M: tl.constexpr,  # at least GROUP, and what a tensor core wants
    BLOCK_N: tl.constexpr,  # keys looked at together
    PADDING: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_KV_SCALES: tl.constexpr,
):
    """Program (row, key head, split): softmax and weighted values of its share of the keys. Rows
    that have not one token exactly are for others."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    slot = tl.load(slots_ptr + row)
    token = tl.load(starts_ptr + row).to(tl.int64)
    if (slot < 0) | (tl.load(starts_ptr + row + 1) - token != 1):
        return
    length = tl.load(lengths_ptr + row)
    low = _first_of(shared_ptr, row, length, window, HAS_SHARED)
    begin, end = share_of(low, length, split, splits, least, BLOCK_N)
    if begin >= end:
        return
    line = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, WIDTH)
    head = kv_head * GROUP + line
    inside = (line < GROUP)[:, None] & (lane < DIM)[None, :]
    place = query_ptr + token * query_stride + (head * DIM)[:, None] + lane[None, :]
    query = tl.load(place, mask=inside, other=0.0)
    if HAS_KV_SCALES:
        scale *= tl.load(kv_scales_ptr + kv_head)
    best, total, out = attended(
        query, begin, end, keys_ptr + kv_head * DIM, values_ptr + kv_head * DIM,
        block_table_ptr + slot.to(tl.int64) * table_stride, kv_stride, scale, softcap,
        DIM, WIDTH, PAGE, BLOCK_M, BLOCK_N, HAS_SOFTCAP,
    )  # fmt: skip
    if HAS_KV_SCALES:
        out *= tl.load(kv_scales_ptr + tl.num_programs(1) + kv_head)
    line_of_part = row.to(tl.int64) * (tl.num_programs(1) * GROUP) + head
    part = parts_ptr + (line_of_part * splits + split) * (DIM + PADDING)
    store_part(part, best, total, out, line < GROUP, DIM, WIDTH)


@triton.jit
def store_part(part_ptr, best, total, out, is_line, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """A part of each line [m], where its own pointer says."""
    lane = tl.arange(0, WIDTH)
    inside = is_line[:, None] & (lane < DIM)[None, :]
    tl.store(part_ptr[:, None] + lane[None, :], out, mask=inside)
    tl.store(part_ptr + DIM, best, mask=is_line)
    tl.store(part_ptr + DIM + 1, total, mask=is_line)


@triton.jit(
    do_not_specialize=("window", "least"),
    do_not_specialize_on_alignment=(*NEVER_ALIGNED, "shared_ptr"),
)
def merge_kernel(
    parts_ptr,
    shared_parts_ptr,
    out_ptr,
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    shared_ptr,
    sinks_ptr,
    window,
    least,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARED_SPLITS: tl.constexpr,  # 0: there are no parts of shared positions
    SHARED_LEAST: tl.constexpr,
    PADDING: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Program (row, query head): the splits' parts, weighted by what each saw."""
    HAS_SHARED: tl.constexpr = SHARED_SPLITS > 0
    row = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(starts_ptr + row).to(tl.int64)
    if (tl.load(slots_ptr + row) < 0) | (tl.load(starts_ptr + row + 1) - token != 1):
        return
    line = row.to(tl.int64) * tl.num_programs(1) + head
    length = tl.load(lengths_ptr + row)
    low = _first_of(shared_ptr, row, length, window, HAS_SHARED)
    part, is_used, best, total = _parts_of(
        parts_ptr, line, low, length, least, DIM, BLOCK_N, SPLITS, PADDING
    )
    largest = tl.max(best, 0)
    if HAS_SHARED:
        shared_part, shared_is_used, shared_best, shared_total = _parts_of(
            shared_parts_ptr, line, 0, low, SHARED_LEAST, DIM, BLOCK_N, SHARED_SPLITS, PADDING
        )
        largest = tl.maximum(largest, tl.max(shared_best, 0))
    sum_of_weights = 0.0
    if HAS_SINKS:
        logit = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634  # log2(e)
        largest = tl.maximum(largest, logit)
        sum_of_weights = tl.exp2(logit - largest)
    weight = tl.where(is_used, tl.exp2(best - largest), 0.0)
    sum_of_weights += tl.sum(total * weight, 0)
    out = _weighted(part, weight, is_used, DIM, WIDTH)
    if HAS_SHARED:
        weight = tl.where(shared_is_used, tl.exp2(shared_best - largest), 0.0)
        sum_of_weights += tl.sum(shared_total * weight, 0)
        out += _weighted(shared_part, weight, shared_is_used, DIM, WIDTH)
    out /= tl.maximum(sum_of_weights, 1e-30)
    lane = tl.arange(0, WIDTH)
    place = out_ptr + (token * tl.num_programs(1) + head) * DIM + lane
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=lane < DIM)


@triton.jit
def _first_of(shared_ptr, row, length, window, HAS_SHARED: tl.constexpr):
    """The first position that a row attends to by itself. A window of 0 is none."""
    if HAS_SHARED:
        return tl.load(shared_ptr + row)
    return tl.where(window > 0, tl.maximum(length - window, 0), 0)


@triton.jit
def _parts_of(
    parts_ptr,
    line,
    low,
    high,
    least,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDING: tl.constexpr,
):
    """Each split's part: where it is, whether there is one, its largest score and its sum."""
    split = tl.arange(0, SPLITS)
    begin, end = share_of(low, high, split, SPLITS, least, BLOCK_N)
    is_used = begin < end  # the others wrote nothing
    part = parts_ptr + (line * SPLITS + split) * (DIM + PADDING)
    best = tl.load(part + DIM, mask=is_used, other=float("-inf"))
    total = tl.load(part + DIM + 1, mask=is_used, other=0.0)
    return part, is_used, best, total


@triton.jit
def _weighted(part_ptr, weight, is_used, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """The sum of parts' values, each with its weight.  # [splits] → [dim]"""
    lane = tl.arange(0, WIDTH)
    inside = is_used[:, None] & (lane < DIM)[None, :]
    parts = tl.load(part_ptr[:, None] + lane[None, :], mask=inside, other=0.0)
    return tl.sum(parts * weight[:, None], 0)


def split_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    *,
    splits: int = SPLITS,
    least: int = 1,
    kv_scales: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of the rows of one token; others are left alone, as padding is.

    Query [tokens, heads, dim], its heads next to each other, over keys and values
    [memory rows, kv_heads, dim], kept as `write_cache` does → like query, or into `out`. Splits
    are a power of two; one that has any keys has at least so many tiles of 64.
    """
    if out is None:
        out = query.new_empty(query.shape)
    if len(query):
        parts = split_keys(
            query, keys, values, rows, scores, splits=splits, least=least, kv_scales=kv_scales
        )
        merge(parts, rows, scores, out)
    return out


def split_keys(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    *,
    splits: int,
    least: int,
    kv_scales: Tensor | None = None,
    shared: Tensor | None = None,
) -> Parts:
    """The parts that `merge` takes, of positions from `shared` [rows] on; there must be one."""
    num_rows = len(rows.slots)
    parts = Parts.empty(query, num_rows, splits, least)
    split_decode_kernel[(num_rows, keys.shape[1], splits)](
        query,
        keys,
        values,
        parts.numbers,
        rows.starts,
        rows.lengths,
        rows.slots,
        rows.slots if shared is None else shared,  # never read where there are none
        rows.block_table,
        query if kv_scales is None else kv_scales,  # likewise
        query.stride(0),
        keys.stride(0),
        rows.block_table.stride(0),
        scores.scale,
        scores.softcap or 0.0,
        scores.window or 0,
        splits,
        least,
        **_constants(head_constants(query, keys, rows.block_size)),
        HAS_SHARED=shared is not None,
        HAS_SOFTCAP=scores.softcap is not None,
        HAS_KV_SCALES=kv_scales is not None,
        **pipelined(query.dtype, _NUM_WARPS),
    )
    return parts


def merge(
    parts: Parts,
    rows: PagedRows,
    scores: Scores,
    out: Tensor,
    *,
    shared: Tensor | None = None,
    shared_parts: Parts | None = None,
) -> None:
    """Store what the parts of each row amount to in `out` [tokens, heads, dim]; with those of the
    first `shared` [rows] positions, where a row has any."""
    heads, dim = out.shape[1:]
    merge_kernel[(len(rows.slots), heads)](
        parts.numbers,
        parts.numbers if shared_parts is None else shared_parts.numbers,
        out,
        rows.starts,
        rows.lengths,
        rows.slots,
        rows.slots if shared is None else shared,
        out if scores.sinks is None else scores.sinks,
        scores.window or 0,
        parts.least,
        **_merge_constants(dim, parts, shared_parts),
        HAS_SINKS=scores.sinks is not None,
        num_warps=_NUM_WARPS,
    )


def _constants(shape: dict[str, int]) -> dict[str, int]:
    block_m = max(wide_enough(shape["GROUP"]), 16)
    block_n = keys_of_tile(shape["WIDTH"])
    return {**shape, "BLOCK_M": block_m, "BLOCK_N": block_n, "PADDING": PADDING}


def _merge_constants(dim: int, parts: Parts, shared: Parts | None) -> dict[str, int]:
    width = max(wide_enough(dim), 16)
    return {
        "DIM": dim,
        "WIDTH": width,
        "BLOCK_N": keys_of_tile(width),
        "SPLITS": parts.splits,
        "SHARED_SPLITS": 0 if shared is None else shared.splits,
        "SHARED_LEAST": 1 if shared is None else shared.least,
        "PADDING": PADDING,
    }


def _builds() -> Iterator[Build]:
    columns = dict.fromkeys(("starts_ptr", "lengths_ptr", "slots_ptr", "shared_ptr"), "*i32")
    kinds = [((32, 8, 128), extra) for extra in ("", ", behind shared blocks", ", soft-cap")]
    for shape, extra in (*kinds, ((32, 8, 128), ", e4m3"), ((12, 4, 256), "")):
        is_e4m3 = extra == ", e4m3"
        kept = "*fp8e4nv" if is_e4m3 else "*bf16"
        yield Build(
            name=f"{shape[0]} + {shape[1]} heads of {shape[2]}{extra}",
            kernel=split_decode_kernel,
            types={
                "query_ptr": "*bf16",
                **dict.fromkeys(("keys_ptr", "values_ptr"), kept),
                **dict.fromkeys(("parts_ptr", "kv_scales_ptr"), "*fp32"),
                **columns,
                "block_table_ptr": "*i32",
                **dict.fromkeys(("query_stride", "kv_stride"), "i32"),
                **dict.fromkeys(("table_stride", "window", "splits", "least"), "i32"),
                **dict.fromkeys(("scale", "softcap"), "fp32"),
            },
            constants={
                **_constants(shape_constants(*shape, 16)),
                "HAS_SHARED": extra == ", behind shared blocks",
                "HAS_SOFTCAP": extra == ", soft-cap",
                "HAS_KV_SCALES": is_e4m3,
            },
            aligned=(
                *("query_ptr", "keys_ptr", "values_ptr", "parts_ptr"),
                *("query_stride", "kv_stride"),
            ),
            options=pipelined(torch.bfloat16, _NUM_WARPS),
            capabilities=(90,) if is_e4m3 else (80, 90),
            uses_tensor_cores=True,
            loads_ahead=True,
        )
    parts = Parts(torch.empty(0, 0, SPLITS, 0), 1)
    for extra, shared in (("", None), (", with shared blocks", parts)):
        yield Build(
            name=f"32 + 8 heads of 128{extra}",
            kernel=merge_kernel,
            types={
                **dict.fromkeys(("parts_ptr", "shared_parts_ptr"), "*fp32"),
                **columns,
                **dict.fromkeys(("out_ptr", "sinks_ptr"), "*bf16"),
                **dict.fromkeys(("window", "least"), "i32"),
            },
            constants={**_merge_constants(128, parts, shared), "HAS_SINKS": True},
            aligned=("parts_ptr", "shared_parts_ptr", "out_ptr"),
            options={"num_warps": _NUM_WARPS},
        )


BUILDS = tuple(_builds())
