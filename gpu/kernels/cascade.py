"""Cascade attention: leading blocks that many rows share are read once for all of them.

The queries of all rows of a group stand in one tile, so what one row of a matrix product was for
decode becomes a product of full height (Hydragen, Juravsky et al. 2024; cascade inference of
FlashInfer, Ye et al. 2024). What each row has for itself is attended to as ever, and the two are
merged by the logarithms of their sums (FlashDecoding, Dao et al. 2023).
"""

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention import Scores
from .attention_parts import (
    NEVER_ALIGNED,
    PagedRows,
    SharedRuns,
    attended,
    capability_of,
    head_constants,
    keys_of_tile,
    pipelined,
    shape_constants,
    share_of,
)
from .build import Build, wide_enough
from .split_decode import PADDING, Parts, merge, split_keys, store_part

SPLITS = 8  # of a group's keys at most, as far as the estimate of what it saves goes
LEAST = 4  # tiles of a split: what a part costs to merge is little beside 256 keys
_BLOCK_M = 64
_LOG2_E = 1.4426950408889634


@triton.jit(
    do_not_specialize=("table_stride", "splits"),
    do_not_specialize_on_alignment=(*NEVER_ALIGNED, "order_ptr", "tiles_ptr"),
)
def shared_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    parts_ptr,
    starts_ptr,
    order_ptr,
    tiles_ptr,
    block_table_ptr,
    kv_scales_ptr,
    query_stride,
    kv_stride,
    table_stride,
    scale,
    softcap,
    splits,  # no constant: they change with the number of tiles
    GROUP: tl.constexpr,  # query heads of a key head
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,  # at least DIM
    PAGE: tl.constexpr,  # positions of a block
    BLOCK_M: tl.constexpr,  # query heads times rows of a tile
    BLOCK_N: tl.constexpr,  # keys looked at together
    LEAST: tl.constexpr,  # tiles of keys that a split has at least
    PADDING: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_KV_SCALES: tl.constexpr,
):
    """Program (tile, key head, split): softmax and weighted values of its share of the keys, for
    every row of the tile."""
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    tile_ptr = tiles_ptr + tl.program_id(0) * 4
    first = tl.load(tile_ptr)
    num_rows = tl.load(tile_ptr + 1)
    slot = tl.load(tile_ptr + 2)
    begin, end = share_of(0, tl.load(tile_ptr + 3), split, splits, LEAST, BLOCK_N)
    if begin >= end:
        return
    line = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, WIDTH)
    is_line = line < num_rows * GROUP
    row = tl.load(order_ptr + first + line // GROUP, mask=is_line, other=0)
    token = tl.load(starts_ptr + row, mask=is_line, other=0).to(tl.int64)
    head = kv_head * GROUP + line % GROUP
    inside = is_line[:, None] & (lane < DIM)[None, :]
    place = query_ptr + (token * query_stride + head * DIM)[:, None] + lane[None, :]
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
    store_part(part, best, total, out, is_line, DIM, WIDTH)


def rows_per_tile(heads: int, kv_heads: int) -> int:
    """How many rows of a group a program takes."""
    group = heads // kv_heads
    return max(_BLOCK_M, wide_enough(group)) // group


def cascade(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    shared: SharedRuns,
    *,
    splits: int,
    least: int = 1,
    shared_splits: int = SPLITS,
    kv_scales: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of the rows of one token, as `split_decode`, of which groups share blocks.

    Tiles have at most `rows_per_tile` rows. There must be no window.
    """
    assert scores.window is None, "behind a window shared blocks are not seen whole"
    if out is None:
        out = query.new_empty(query.shape)
    if len(query):
        shared_parts = attend_shared(
            query, keys, values, rows, scores, shared, splits=shared_splits, kv_scales=kv_scales
        )
        parts = split_keys(
            query, keys, values, rows, scores,
            splits=splits, least=least, kv_scales=kv_scales, shared=shared.lengths,
        )  # fmt: skip
        merge(parts, rows, scores, out, shared=shared.lengths, shared_parts=shared_parts)
    return out


def attend_shared(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    shared: SharedRuns,
    *,
    splits: int = SPLITS,
    kv_scales: Tensor | None = None,
) -> Parts:
    """The parts of what rows share; what there is for rows that share nothing is undefined."""
    parts = Parts.empty(query, len(rows.slots), splits, LEAST)
    shape = head_constants(query, keys, rows.block_size)
    shared_kernel[(len(shared.tiles), keys.shape[1], splits)](
        query,
        keys,
        values,
        parts.numbers,
        rows.starts,
        shared.order,
        shared.tiles,
        rows.block_table,
        query if kv_scales is None else kv_scales,  # never read where there are none
        query.stride(0),
        keys.stride(0),
        rows.block_table.stride(0),
        scores.scale,
        scores.softcap or 0.0,
        splits,
        **_constants(shape),
        HAS_SOFTCAP=scores.softcap is not None,
        HAS_KV_SCALES=kv_scales is not None,
        **pipelined(query.dtype, _num_warps(capability_of(query.device), shape["WIDTH"])),
    )
    return parts


def cascade_reference(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    shared: SharedRuns,
    *,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """As `paged_attention_reference` in rows of one token, but by way of the groups; zeros for all
    other rows."""
    out = torch.zeros_like(query)
    memory = keys, values, kv_scales
    outs, bests, totals = attend_shared_reference(
        query, keys, values, rows, scores, shared, kv_scales=kv_scales
    )
    for row, slot in enumerate(rows.slots.tolist()):
        start, stop = rows.starts[row : row + 2].tolist()
        if slot < 0 or stop - start != 1:
            continue
        own = torch.arange(int(shared.lengths[row]), int(rows.lengths[row]))
        rest = _partial_reference(query[start:stop], memory, rows, slot, own, scores)
        partial = outs[row, None], bests[row, None], totals[row, None]
        out[start:stop] = merge_reference((partial, rest), scores.sinks).to(query.dtype)
    return out


def attend_shared_reference(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    shared: SharedRuns,
    *,
    kv_scales: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What each row's shared positions amount to, in float32: weighted values [rows, heads, dim],
    largest score in powers of two and sum of weights [rows, heads]; of no weight where none is
    shared."""
    num_rows, heads, dim = len(rows.slots), *query.shape[1:]
    out = query.new_zeros((num_rows, heads, dim), dtype=torch.float32)
    best = out.new_full((num_rows, heads), float("-inf"))
    total = out.new_zeros((num_rows, heads))
    for first, count, slot, length in shared.tiles.tolist():
        own = shared.order[first : first + count].long()
        if length:
            out[own], best[own], total[own] = _partial_reference(
                query[rows.starts[own].long()],
                (keys, values, kv_scales),
                rows,
                slot,
                torch.arange(length),
                scores,
            )
    return out, best, total


def merge_reference(
    parts: Sequence[tuple[Tensor, Tensor, Tensor]], sinks: Tensor | None = None
) -> Tensor:
    """What parts of the same queries amount to: each is weighted values [tokens, heads, dim],
    largest score in powers of two and sum of weights [tokens, heads]."""
    outs, bests, totals = (torch.stack(column) for column in zip(*parts, strict=True))
    largest = bests.amax(dim=0)
    if sinks is not None:
        logits = sinks.float() * _LOG2_E
        largest = largest.maximum(logits)
    weights = torch.exp2(bests - largest)
    total = (totals * weights).sum(dim=0)
    if sinks is not None:
        total += torch.exp2(logits - largest)
    return (outs * weights[..., None]).sum(dim=0) / total[..., None]


def _partial_reference(
    query: Tensor,
    memory: tuple[Tensor, Tensor, Tensor | None],
    rows: PagedRows,
    slot: int,
    position: Tensor,
    scores: Scores,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query [tokens, heads, dim] over these positions of a slot, which all of them see."""
    keys, values, kv_scales = memory
    blocks = rows.block_table[slot, position // rows.block_size].long()
    at = blocks * rows.block_size + position % rows.block_size
    key_scale, value_scale = (1.0, 1.0) if kv_scales is None else kv_scales[:, :, None]
    grouped = query.float().reshape(len(query), keys.shape[1], -1, query.shape[2])
    score = torch.einsum("qkgd,nkd->qkgn", grouped, keys[at].float() * key_scale) * scores.scale
    if scores.softcap is not None:
        score = scores.softcap * torch.tanh(score / scores.softcap)
    score *= _LOG2_E
    best = score.amax(dim=-1)
    weight = torch.exp2(score - best[..., None])
    out = torch.einsum("qkgn,nkd->qkgd", weight, values[at].float() * value_scale)
    return out.flatten(1, 2), best.flatten(1, 2), weight.sum(dim=-1).flatten(1, 2)


def _num_warps(capability: int, width: int) -> int:
    # The one-warp instructions before sm_90 take more registers, and so do wide heads: four warps
    # would spill.
    return 4 if capability >= 90 and width <= 128 else 8


def _constants(shape: dict[str, int]) -> dict[str, int]:
    return {
        **shape,
        "BLOCK_M": max(_BLOCK_M, wide_enough(shape["GROUP"])),
        "BLOCK_N": keys_of_tile(shape["WIDTH"]),
        "LEAST": LEAST,
        "PADDING": PADDING,
    }


def _builds() -> Iterator[Build]:
    kinds = [((32, 8, 128), extra) for extra in ("", ", soft-cap", ", e4m3")]
    for shape, extra in (*kinds, ((12, 4, 256), "")):
        is_e4m3 = extra == ", e4m3"
        kept = "*fp8e4nv" if is_e4m3 else "*bf16"
        for capability in (90,) if is_e4m3 else (80, 90):
            constants = _constants(shape_constants(*shape, 16))
            yield Build(
                name=f"{shape[0]} + {shape[1]} heads of {shape[2]}{extra}",
                kernel=shared_kernel,
                types={
                    "query_ptr": "*bf16",
                    **dict.fromkeys(("keys_ptr", "values_ptr"), kept),
                    **dict.fromkeys(("parts_ptr", "kv_scales_ptr"), "*fp32"),
                    **dict.fromkeys(("starts_ptr", "order_ptr", "tiles_ptr"), "*i32"),
                    "block_table_ptr": "*i32",
                    **dict.fromkeys(("query_stride", "kv_stride"), "i32"),
                    **dict.fromkeys(("table_stride", "splits"), "i32"),
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
                options=pipelined(torch.bfloat16, _num_warps(capability, constants["WIDTH"])),
                capabilities=(capability,),
                uses_tensor_cores=True,
                loads_ahead=True,
                uses_warp_groups=capability >= 90,
            )


BUILDS = tuple(_builds())
