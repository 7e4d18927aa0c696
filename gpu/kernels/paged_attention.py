"""Attention of rows of any lengths over paged keys and values: prefill, chunks and decode at once.

A program has a stretch of one row's tokens with all the query heads of one key head: they share
the keys and values it reads, and fill a tile together (FlashAttention-2, Dao 2023; the grid is that
of "The Anatomy of a Triton Attention Kernel", 2025).
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention import Scores
from .attention_parts import (
    NEVER_ALIGNED,
    PagedRows,
    capability_of,
    folded,
    head_constants,
    keys_of_tile,
    kv_rows,
    pipelined,
    row_of,
    scores_of,
    shape_constants,
)
from .build import Build, wide_enough


@triton.jit(
    do_not_specialize=("num_rows", "table_stride", "window"),
    do_not_specialize_on_alignment=NEVER_ALIGNED,
)
def paged_attention_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    out_ptr,
    starts_ptr,
    lengths_ptr,
    slots_ptr,
    block_table_ptr,
    sinks_ptr,
    kv_scales_ptr,
    num_rows,
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
    BLOCK_M: tl.constexpr,  # query heads times tokens of a program
    BLOCK_N: tl.constexpr,  # keys it looks at together
    IS_DECODE: tl.constexpr,  # no row has more than one token
    SKIPS_SINGLES: tl.constexpr,  # rows of one token are for others
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_KV_SCALES: tl.constexpr,
):
    """Program (stretch, key head). Row r begins at the stretch starts[r] // BLOCK_Q + r, so the
    grid depends on no length; in decode it is stretch r."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    # The end of a prompt sees the most keys: what takes longest begins first.
    stretch = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row = stretch
    if not IS_DECODE:
        row = row_of(starts_ptr, stretch, num_rows, BLOCK_Q)
    slot = tl.load(slots_ptr + row)
    start = tl.load(starts_ptr + row)
    num_tokens = tl.load(starts_ptr + row + 1) - start
    first = 0  # of the row's tokens
    if not IS_DECODE:
        first = (stretch - start // BLOCK_Q - row) * BLOCK_Q
    if (slot < 0) | (first >= num_tokens) | ((num_tokens == 1) & SKIPS_SINGLES):
        return
    length = tl.load(lengths_ptr + row)

    line = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, WIDTH)
    token = first + line // GROUP
    head = kv_head * GROUP + line % GROUP
    is_line = (line < BLOCK_Q * GROUP) & (token < num_tokens)
    place = (start + token).to(tl.int64)
    inside = is_line[:, None] & (lane < DIM)[None, :]
    query = tl.load(
        query_ptr + (place * query_stride + head * DIM)[:, None] + lane[None, :],
        mask=inside,
        other=0.0,
    )
    position = length - num_tokens + token
    first_position = length - num_tokens + first
    end = tl.minimum(first_position + BLOCK_Q, length)  # behind the last key any of them sees

    if HAS_KV_SCALES:
        scale *= tl.load(kv_scales_ptr + kv_head)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        best = (
            tl.load(sinks_ptr + head, mask=is_line, other=0.0).to(tl.float32) * 1.4426950408889634
        )
        total += 1.0
    out = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    table_ptr = block_table_ptr + slot.to(tl.int64) * table_stride
    keys_ptr += kv_head * DIM
    values_ptr += kv_head * DIM
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
    elif not IS_DECODE and BLOCK_M > 16:
        # Most tiles are seen whole by every line: only the last ones need a mask. With so few lines
        # the mask is nothing beside the keys, and a second loop takes registers.
        seen_by_all = (first_position + 1) // BLOCK_N * BLOCK_N
        best, total, out = _attend(
            query, position, begin, seen_by_all, best, total, out, keys_ptr, values_ptr, table_ptr,
            kv_stride, end, scale, softcap, window,
            DIM, WIDTH, PAGE, BLOCK_N, HAS_SOFTCAP, HAS_WINDOW, False,
        )  # fmt: skip
        begin = seen_by_all
    best, total, out = _attend(
        query, position, begin, end, best, total, out, keys_ptr, values_ptr, table_ptr,
        kv_stride, end, scale, softcap, window,
        DIM, WIDTH, PAGE, BLOCK_N, HAS_SOFTCAP, HAS_WINDOW, True,
    )  # fmt: skip
    out = out / tl.maximum(total, 1e-30)[:, None]
    if HAS_KV_SCALES:
        out *= tl.load(kv_scales_ptr + tl.num_programs(1) + kv_head)
    heads = tl.num_programs(1) * GROUP
    tl.store(
        out_ptr + ((place * heads + head) * DIM)[:, None] + lane[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def _attend(
    query,
    position,
    begin,
    stop,
    best,
    total,
    out,
    keys_ptr,
    values_ptr,
    table_ptr,
    kv_stride,
    end,
    scale,
    softcap,
    window,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_EDGE: tl.constexpr,
):
    """Take the keys from `begin` to `stop` into the running softmax."""
    lane = tl.arange(0, WIDTH)
    is_lane = lane < DIM
    for first_key in range(begin, stop, BLOCK_N):
        key_position = first_key + tl.arange(0, BLOCK_N)
        is_key = key_position < end
        row = kv_rows(table_ptr, key_position, is_key, PAGE) * kv_stride
        keys = tl.load(
            keys_ptr + row[None, :] + lane[:, None],
            mask=is_key[None, :] & is_lane[:, None],
            other=0.0,
        ).to(query.dtype)
        score = scores_of(query, keys, scale, softcap, HAS_SOFTCAP)
        if IS_EDGE:
            is_seen = key_position[None, :] <= position[:, None]
            if HAS_WINDOW:
                is_seen &= key_position[None, :] > position[:, None] - window
            score = tl.where(is_seen, score, float("-inf"))
        values = tl.load(
            values_ptr + row[:, None] + lane[None, :],
            mask=is_key[:, None] & is_lane[None, :],
            other=0.0,
        ).to(query.dtype)
        best, total, out = folded(score, values, best, total, out)
    return best, total, out


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    *,
    kv_scales: Tensor | None = None,
    skips_singles: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Query [tokens, heads, dim], its heads next to each other, over keys and values
    [memory rows, kv_heads, dim], kept as `write_cache` does → like query, or into `out`. What it
    gives for padding, and for rows of one token if it skips them, is undefined."""
    tokens = len(query)
    if out is None:
        out = query.new_empty(query.shape)
    if not tokens:
        return out
    constants = head_constants(query, keys, rows.block_size)
    tile = _tile(rows.longest, constants, capability_of(query.device))
    options = pipelined(query.dtype, tile.pop("num_warps"))
    num_rows, block_q = len(rows.slots), tile["BLOCK_M"] // constants["GROUP"]
    stretches = num_rows if rows.longest <= 1 else tokens // block_q + num_rows
    paged_attention_kernel[(stretches, keys.shape[1])](
        query,
        keys,
        values,
        out,
        rows.starts,
        rows.lengths,
        rows.slots,
        rows.block_table,
        query if scores.sinks is None else scores.sinks,  # never read where there are none
        query if kv_scales is None else kv_scales,
        num_rows,
        query.stride(0),
        keys.stride(0),
        rows.block_table.stride(0),
        scores.scale,
        scores.softcap or 0.0,
        scores.window or 0,
        **constants,
        **tile,
        **_flags(scores),
        IS_DECODE=rows.longest <= 1,
        SKIPS_SINGLES=skips_singles,
        HAS_KV_SCALES=kv_scales is not None,
        **options,
    )
    return out


def paged_attention_reference(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    *,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Row by row, in float32; zeros for padding."""
    out = torch.zeros_like(query)
    kv_heads = keys.shape[1]
    key_scale, value_scale = (1.0, 1.0) if kv_scales is None else kv_scales[:, :, None]
    for row, slot in enumerate(rows.slots.tolist()):
        start, stop = rows.starts[row : row + 2].tolist()
        if slot < 0 or start == stop:
            continue
        position = torch.arange(int(rows.lengths[row]))
        blocks = rows.block_table[slot, position // rows.block_size].long()
        at = blocks * rows.block_size + position % rows.block_size
        grouped = query[start:stop].float().reshape(stop - start, kv_heads, -1, keys.shape[2])
        score = torch.einsum("qkgd,nkd->kgqn", grouped, keys[at].float() * key_scale)
        score *= scores.scale
        if scores.softcap is not None:
            score = scores.softcap * torch.tanh(score / scores.softcap)
        own = position[start - stop :, None]
        hidden = position > own
        if scores.window is not None:
            hidden |= position <= own - scores.window
        score.masked_fill_(hidden, float("-inf"))
        if scores.sinks is not None:
            sinks = scores.sinks.float().view(kv_heads, -1, 1, 1).expand(*score.shape[:3], 1)
            score = torch.cat([score, sinks], dim=-1)
        weight = score.softmax(dim=-1)[..., : len(position)]
        attended = torch.einsum("kgqn,nkd->qkgd", weight, values[at].float() * value_scale)
        out[start:stop] = attended.flatten(1, 2).to(query.dtype)
    return out


def _tile(longest: int, shape: dict[str, int], capability: int) -> dict[str, int]:
    """How much a program takes on, and with how many warps."""
    group, is_wide = shape["GROUP"], shape["WIDTH"] > 128
    least = max(wide_enough(group), 16)
    block_n = keys_of_tile(shape["WIDTH"])
    if longest * group <= least:
        return {"BLOCK_M": least, "BLOCK_N": block_n, "num_warps": 4}
    # The one-warp instructions before sm_90 take more registers: 64 keys at a time would spill.
    block_n = block_n if capability >= 90 else 32
    if longest * group <= 64 or is_wide:
        num_warps = 4 if capability >= 90 and not is_wide else 8
        return {"BLOCK_M": max(least, 64), "BLOCK_N": block_n, "num_warps": num_warps}
    return {"BLOCK_M": max(least, 128), "BLOCK_N": block_n, "num_warps": 8}


def longest_of_tiles(group: int) -> tuple[int, ...]:
    """Tokens of a row, rising, by which tiles of every kind but that of decode are launched, where
    so many query heads share a key head."""
    least = max(64 // group, 2)
    return 2, least, least + 1


def _flags(scores: Scores) -> dict[str, bool]:
    return {
        "HAS_WINDOW": scores.window is not None,
        "HAS_SOFTCAP": scores.softcap is not None,
        "HAS_SINKS": scores.sinks is not None,
    }


_KINDS = {1: "decode", 2: "two tokens", 16: "a few tokens"}


def _builds() -> Iterator[Build]:
    wide, odd = shape_constants(32, 8, 128, 16), shape_constants(9, 3, 64, 16)
    wider = shape_constants(12, 4, 256, 16)
    plain, all_at_once = Scores(1.0), Scores(1.0, 4096, 50.0, torch.empty(0))
    name = "32 + 8 heads of 128"
    for capability in (80, 90):
        for longest in (1, 2, 16, 2048):
            yield _build(name, wide, longest, plain, capability)
            extra = f"{name}, window, soft-cap and sinks"
            yield _build(extra, wide, longest, all_at_once, capability)
            if capability >= 90:
                yield _build(f"{name}, e4m3", wide, longest, plain, capability, kept="*fp8e4nv")
            yield _build("12 + 4 heads of 256", wider, longest, plain, capability)
        yield _build("9 + 3 heads of 64", odd, 2048, plain, capability)


def _build(
    name: str,
    shape: dict[str, int],
    longest: int,
    scores: Scores,
    capability: int,
    *,
    kept: str = "*bf16",
) -> Build:
    tile = _tile(longest, shape, capability)
    options = pipelined(torch.bfloat16, tile.pop("num_warps"))
    return Build(
        name=f"{_KINDS.get(longest, 'prefill')}, {name}",
        kernel=paged_attention_kernel,
        types={
            **dict.fromkeys(("query_ptr", "out_ptr", "sinks_ptr"), "*bf16"),
            **dict.fromkeys(("keys_ptr", "values_ptr"), kept),
            "kv_scales_ptr": "*fp32",
            **dict.fromkeys(("starts_ptr", "lengths_ptr", "slots_ptr"), "*i32"),
            "block_table_ptr": "*i32",
            **dict.fromkeys(("num_rows", "query_stride", "kv_stride"), "i32"),
            **dict.fromkeys(("table_stride", "window"), "i32"),
            **dict.fromkeys(("scale", "softcap"), "fp32"),
        },
        constants={
            **shape,
            **tile,
            **_flags(scores),
            "IS_DECODE": longest == 1,
            "SKIPS_SINGLES": longest > 1,
            "HAS_KV_SCALES": kept != "*bf16",
        },
        aligned=(
            *("query_ptr", "keys_ptr", "values_ptr", "out_ptr"),
            *("query_stride", "kv_stride"),
        ),
        options=options,
        capabilities=(capability,),
        uses_tensor_cores=True,
        loads_ahead=True,
        uses_warp_groups=tile["BLOCK_M"] >= 64 and capability >= 90,
    )


BUILDS = tuple(_builds())
