"""Query and key norm, rotary embedding, and the write of keys and values into their blocks."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import Build, wide_enough


@triton.jit(do_not_specialize=("table_stride",))
def cache_write_kernel(
    qkv_ptr,
    query_ptr,
    keys_ptr,
    values_ptr,
    positions_ptr,
    slots_ptr,
    block_table_ptr,
    cos_ptr,
    sin_ptr,
    query_norm_ptr,
    key_norm_ptr,
    kv_scales_ptr,
    qkv_stride,
    kv_stride,
    table_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,  # at least DIM / 2
    PAGE: tl.constexpr,  # positions of a block
    GROUP: tl.constexpr,  # heads of a program
    HAS_NORM: tl.constexpr,
    HAS_KV_SCALES: tl.constexpr,
):
    """Program (token, group of heads); heads count through queries, keys and values."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    position = tl.load(positions_ptr + token)
    block = tl.load(block_table_ptr + slot.to(tl.int64) * table_stride + position // PAGE)
    kv_row = (block.to(tl.int64) * PAGE + position % PAGE) * kv_stride

    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]
    lane = tl.arange(0, HALF)[None, :]
    is_lane = lane < DIM // 2
    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    inside = (head < HEADS + 2 * KV_HEADS) & is_lane

    place = qkv_ptr + token * qkv_stride + head * DIM + lane
    low = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(place + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
        scale = tl.where(is_value, 1.0, tl.rsqrt(squares / DIM + eps)[:, None])
        low = low * scale * _norm_weight(query_norm_ptr, key_norm_ptr, lane, is_query, is_key)
        upper = lane + DIM // 2
        high = high * scale * _norm_weight(query_norm_ptr, key_norm_ptr, upper, is_query, is_key)

    is_turned = (is_query | is_key) & is_lane
    turn = position.to(tl.int64) * DIM + DIM // 2 + lane  # the upper half: there the sine is plain
    cos = tl.load(cos_ptr + turn, mask=is_turned, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + turn, mask=is_turned, other=0.0).to(tl.float32)
    # A value that is not finite stays where it is: infinity times no sine is not a number.
    new_low = tl.where(is_turned, low * cos - high * sin, low)
    new_high = tl.where(is_turned, high * cos + low * sin, high)

    query = query_ptr + token * (HEADS * DIM) + head * DIM + lane
    kind = query_ptr.dtype.element_ty
    tl.store(query, new_low.to(kind), mask=is_query & is_lane)
    tl.store(query + DIM // 2, new_high.to(kind), mask=is_query & is_lane)
    if HAS_KV_SCALES:
        scale = tl.load(kv_scales_ptr + head - HEADS, mask=is_key | is_value, other=1.0)
        new_low = new_low / scale
        new_high = new_high / scale
    new_low = _kept(new_low, keys_ptr.dtype.element_ty)
    new_high = _kept(new_high, keys_ptr.dtype.element_ty)
    key = keys_ptr + kv_row + (head - HEADS) * DIM + lane
    tl.store(key, new_low, mask=is_key & is_lane)
    tl.store(key + DIM // 2, new_high, mask=is_key & is_lane)
    value = values_ptr + kv_row + (head - HEADS - KV_HEADS) * DIM + lane
    tl.store(value, new_low, mask=is_value & is_lane)
    tl.store(value + DIM // 2, new_high, mask=is_value & is_lane)


@triton.jit
def _norm_weight(query_norm_ptr, key_norm_ptr, column, is_query, is_key):
    """The weight of each head's norm; 1 for values, which have none.  # [heads, columns]"""
    of_query = tl.load(query_norm_ptr + column, mask=is_query, other=1.0).to(tl.float32)
    of_key = tl.load(key_norm_ptr + column, mask=is_key, other=1.0).to(tl.float32)
    return of_query * of_key


@triton.jit
def _kept(numbers, kind: tl.constexpr):
    """Numbers as the memory keeps them: too large for e4m3 is its largest, NaN stays NaN."""
    if kind == tl.float8e4nv:
        numbers = tl.minimum(numbers, 448.0, propagate_nan=tl.PropagateNan.ALL)
        numbers = tl.maximum(numbers, -448.0, propagate_nan=tl.PropagateNan.ALL)
    return numbers.to(kind)


def write_cache(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    positions: Tensor,
    slots: Tensor,
    block_table: Tensor,
    block_size: int,
    cos: Tensor,
    sin: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Store the keys and values of qkv [tokens, (heads + 2 * kv_heads) * dim] and give the queries.

    Keys and values [rows, kv_heads, dim] have a row per position of every block. A token belongs to
    a slot of the block table [slots, blocks] and stands at a position; slot -1 is padding, of which
    nothing is written. Cos and sin are the tables of `RopeConfig.tables`; norms are the weights of
    query and key [dim], for models that have them.

    Keys and values may be of another dtype than qkv: float8_e4m3fn, say, on GPUs that have it
    (`keeps_e4m3`). They are kept divided by `kv_scales` [2, kv_heads] of float32, of keys first,
    where there are any; attention must be given the same ones.  # → [tokens, heads, dim]
    """
    kv_heads, dim = keys.shape[1:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    query = qkv.new_empty((len(qkv), heads, dim))
    if len(qkv):
        query_norm, key_norm = norms or (cos, cos)  # never read where there is no norm
        constants = _constants(heads, kv_heads, dim, block_size, norms is not None)
        constants["HAS_KV_SCALES"] = kv_scales is not None
        grid = (len(qkv), triton.cdiv(heads + 2 * kv_heads, constants["GROUP"]))
        cache_write_kernel[grid](
            qkv,
            query,
            keys,
            values,
            positions,
            slots,
            block_table,
            cos,
            sin,
            query_norm,
            key_norm,
            cos if kv_scales is None else kv_scales,  # likewise
            qkv.stride(0),
            keys.stride(0),
            block_table.stride(0),
            eps,
            **constants,
            **_OPTIONS,
        )
    return query


def write_cache_reference(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    positions: Tensor,
    slots: Tensor,
    block_table: Tensor,
    block_size: int,
    cos: Tensor,
    sin: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    kv_scales: Tensor | None = None,
) -> Tensor:
    kv_heads, dim = keys.shape[1:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    query, key, value = qkv.view(len(qkv), -1, dim).tensor_split((heads, heads + kv_heads), dim=1)
    query, key = query.float(), key.float()
    if norms is not None:
        query, key = (
            x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
            for x, weight in zip((query, key), norms, strict=True)
        )
    at = positions.long()
    turns = cos[at, None].float(), sin[at, None].float()
    query, key = (x * turns[0] + x.roll(dim // 2, dims=-1) * turns[1] for x in (query, key))
    is_real = slots >= 0
    blocks = block_table[slots[is_real].long(), at[is_real] // block_size].long()
    rows = blocks * block_size + at[is_real] % block_size
    key_scale, value_scale = (1.0, 1.0) if kv_scales is None else kv_scales[:, :, None]
    keys[rows] = _kept_reference(key[is_real] / key_scale, keys.dtype)
    values[rows] = _kept_reference(value[is_real].float() / value_scale, values.dtype)
    return query.to(qkv.dtype)


def _kept_reference(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float8_e4m3fn:
        largest = torch.finfo(dtype).max
        numbers = numbers.clamp(-largest, largest)
    return numbers.to(dtype)


_OPTIONS = {"num_warps": 2}  # eight heads of 128: 16 bytes a thread


def _constants(heads: int, kv_heads: int, dim: int, block_size: int, norm: bool) -> dict[str, int]:
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "HALF": wide_enough(dim // 2),
        "PAGE": block_size,
        "GROUP": 8,
        "HAS_NORM": norm,
    }


BUILDS = tuple(
    Build(
        name=name,
        kernel=cache_write_kernel,
        types={
            **dict.fromkeys(("qkv_ptr", "query_ptr"), "*bf16"),
            **dict.fromkeys(("keys_ptr", "values_ptr"), "*fp8e4nv" if is_e4m3 else "*bf16"),
            "kv_scales_ptr": "*fp32",
            **dict.fromkeys(("positions_ptr", "slots_ptr", "block_table_ptr"), "*i32"),
            **dict.fromkeys(("cos_ptr", "sin_ptr", "query_norm_ptr", "key_norm_ptr"), "*bf16"),
            **dict.fromkeys(("qkv_stride", "kv_stride", "table_stride"), "i32"),
            "eps": "fp32",
        },
        constants={**_constants(*shape), "HAS_KV_SCALES": is_e4m3},
        aligned=(
            *("qkv_ptr", "query_ptr", "keys_ptr", "values_ptr", "cos_ptr", "sin_ptr"),
            *("query_norm_ptr", "key_norm_ptr", "qkv_stride", "kv_stride"),
        ),
        options=_OPTIONS,
        capabilities=(90,) if is_e4m3 else (80, 90),
    )
    for name, shape, is_e4m3 in (
        ("32 + 8 heads of 128", (32, 8, 128, 16, False), False),
        ("16 + 8 heads of 128, normed", (16, 8, 128, 16, True), False),
        ("16 + 8 heads of 128, normed, into e4m3", (16, 8, 128, 16, True), True),
    )
)
