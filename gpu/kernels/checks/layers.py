"""Checks of what a layer does beside attention and products."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ...models.rope import RopeConfig
from ...models.rotary import rotary_tables
from .. import activation, cache_write, norm
from ..attention_parts import keeps_e4m3
from .check import Bench, Check, Pair

_PAGE = 4
_TABLE = torch.tensor([[5, 0, 7], [2, 6, 1]], dtype=torch.int32)
_PLACES = ((0, 0), (0, 3), (0, 4), (1, 11), (-1, 0), (1, 7))  # slot and position of each token


def _silu_mul(bench: Bench, tokens: int, size: int, padding: int) -> Iterator[Pair]:
    gate_up = bench.random(1, tokens, 2 * size, padding=padding)
    given = activation.silu_mul(bench.there(gate_up))
    yield Pair(given, activation.silu_mul_reference(gate_up))


def _add_rms_norm(bench: Bench, tokens: int, size: int, padding: int) -> Iterator[Pair]:
    x = bench.random(1, tokens, size, padding=padding)
    residual = bench.random(2, tokens, size, padding=2 * padding)
    weight = bench.random(3, 1, size)[0]
    sums = bench.there(residual)
    given = norm.add_rms_norm(bench.there(x), sums, bench.there(weight), 1e-5)
    yield Pair(given, norm.add_rms_norm_reference(x, residual, weight, 1e-5), ulps=2)
    yield Pair(sums, residual)


def _write_cache(
    bench: Bench, heads: int, kv_heads: int, dim: int, has_norm: bool, is_e4m3: bool
) -> Iterator[Pair]:
    if is_e4m3 and not keeps_e4m3(bench.device):
        return
    slots, positions = torch.tensor(_PLACES, dtype=torch.int32).T.contiguous()
    qkv = bench.random(1, len(slots), (heads + 2 * kv_heads) * dim, padding=16)
    rope = RopeConfig.from_fields({}, theta=10_000.0, max_positions=12)
    cos, sin = rotary_tables(rope, dim, 12, bench.dtype)
    weights = bench.random(2, 2, dim)
    options: dict[str, Any] = {
        "positions": positions,
        "slots": slots,
        "block_table": _TABLE,
        "cos": cos,
        "sin": sin,
        "norms": (weights[0], weights[1]) if has_norm else None,
        "kv_scales": 0.5 + bench.random(3, 2, kv_heads).float().abs() if is_e4m3 else None,
    }
    same: dict[str, Any] = {"block_size": _PAGE, "eps": 1e-6}
    kept_in = torch.float8_e4m3fn if is_e4m3 else bench.dtype
    memory = torch.zeros(2, 8 * _PAGE, kv_heads, dim, dtype=kept_in)
    kept, into = bench.there(memory), bench.there(options) | same
    given = cache_write.write_cache(bench.there(qkv), kept[0], kept[1], **into)
    expected = cache_write.write_cache_reference(qkv, memory[0], memory[1], **options, **same)
    is_real = slots >= 0
    yield Pair(given.cpu()[is_real], expected[is_real], ulps=2)
    if is_e4m3:  # a sum that is rounded otherwise may be a step of e4m3 away: an eighth
        kept, memory = kept.cpu().bfloat16(), memory.bfloat16()
    yield Pair(kept, memory, ulps=16 if is_e4m3 else 2)


CHECKS = (
    *(
        Check(
            f"silu and product, {tokens} of {size}",
            partial(_silu_mul, tokens=tokens, size=size, padding=padding),
            (activation.silu_mul_kernel,),
        )
        for tokens, size, padding in ((3, 48, 7), (2, 3_072, 0))
    ),
    *(
        Check(
            f"addition and norm, {tokens} of {size}",
            partial(_add_rms_norm, tokens=tokens, size=size, padding=padding),
            (norm.add_rms_norm_kernel,),
        )
        for tokens, size, padding in ((3, 48, 7), (5, 1_024, 0), (2, 4_096, 0))
    ),
    *(
        Check(
            f"norm, rotation and cache write, {heads} + {kv_heads} heads of {dim}"
            f"{', e4m3' if is_e4m3 else ''}",
            partial(
                _write_cache,
                heads=heads,
                kv_heads=kv_heads,
                dim=dim,
                has_norm=has_norm,
                is_e4m3=is_e4m3,
            ),
            (cache_write.cache_write_kernel,),
        )
        for heads, kv_heads, dim, has_norm, is_e4m3 in (
            (9, 3, 12, False, False),
            (16, 8, 128, True, False),
            (16, 8, 128, True, True),
        )
    ),
)
