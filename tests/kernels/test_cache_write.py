"""Norm, rotation and cache write: the kernel against its reference."""

from typing import Any

import pytest
import torch
from torch import Tensor

from stepahead.gpu.models.rope import RopeConfig
from stepahead.gpu.models.rotary import rotary_tables

from .interpreter import DTYPES, assert_close, cache_write, random_tensor

BLOCK_SIZE = 4
BLOCK_TABLE = torch.tensor([[5, 0, 7], [2, 6, 1]], dtype=torch.int32)


def places(*tokens: tuple[int, int]) -> dict[str, Any]:
    """Slot and position of every token; slot -1 is padding."""
    slots, positions = torch.tensor(tokens, dtype=torch.int32).view(-1, 2).T.contiguous()
    return {"slots": slots, "positions": positions}


EDGES = places((0, 0), (0, 3), (0, 4), (1, 11), (-1, 0), (1, 7))


def memories(kv_heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows = 8 * BLOCK_SIZE
    return torch.zeros(rows, kv_heads, dim, dtype=dtype), torch.zeros(
        rows, kv_heads, dim, dtype=dtype
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "padding"), [(2, 1, 8, 0), (9, 3, 12, 5), (1, 1, 2, 3)]
)
@pytest.mark.parametrize("is_normed", [False, True])
def test_queries_and_both_memories_are_those_of_the_reference(
    heads: int, kv_heads: int, dim: int, padding: int, is_normed: bool, dtype: torch.dtype
) -> None:
    tokens = len(EDGES["slots"])
    width = (heads + 2 * kv_heads) * dim
    qkv = random_tensor(1, tokens, width, dtype=dtype, padding=padding)
    rope = RopeConfig.from_fields({}, theta=10_000.0, max_positions=12)
    cos, sin = rotary_tables(rope, dim, 12, dtype)
    weights = random_tensor(2, 2, dim, dtype=dtype)
    options: dict[str, Any] = {**EDGES, "block_table": BLOCK_TABLE, "block_size": BLOCK_SIZE}
    options |= {"cos": cos, "sin": sin, "eps": 1e-6}
    options |= {"norms": (weights[0], weights[1]) if is_normed else None}
    expected, given = memories(kv_heads, dim, dtype), memories(kv_heads, dim, dtype)

    query = cache_write.write_cache(qkv, *given, **options)
    expected_query = cache_write.write_cache_reference(qkv, *expected, **options)

    is_real = EDGES["slots"] >= 0
    assert_close(query[is_real], expected_query[is_real], ulps=2)
    assert_close(given[0], expected[0], ulps=2)
    assert torch.equal(given[1], expected[1])
    assert (expected[1] != 0).any(dim=-1).any(dim=-1).sum() == 5  # one row for each real token


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_eight_bits_keep_what_is_nearest_and_never_overflow(
    is_scaled: bool, dtype: torch.dtype
) -> None:
    heads, kv_heads, dim = 2, 2, 12
    qkv = random_tensor(1, len(EDGES["slots"]), (heads + 2 * kv_heads) * dim, dtype=dtype)
    qkv[0, -1], qkv[1, -1], qkv[2, -1] = 1e4, -1e4, float("nan")
    rope = RopeConfig.from_fields({}, theta=10_000.0, max_positions=12)
    cos, sin = rotary_tables(rope, dim, 12, dtype)
    scales = torch.tensor([[0.5, 0.07], [0.01, 3.0]]) if is_scaled else None
    options: dict[str, Any] = {**EDGES, "block_table": BLOCK_TABLE, "block_size": BLOCK_SIZE}
    options |= {"cos": cos, "sin": sin, "kv_scales": scales}
    expected, given = (memories(kv_heads, dim, torch.float8_e4m3fn) for _ in range(2))

    query = cache_write.write_cache(qkv, *given, **options)
    expected_query = cache_write.write_cache_reference(qkv, *expected, **options)

    is_real = EDGES["slots"] >= 0
    assert_close(query[is_real], expected_query[is_real], ulps=2)
    keys, expected_keys = given[0].float(), expected[0].float()
    torch.testing.assert_close(keys, expected_keys, rtol=1 / 8, atol=2**-9)  # of the rounding
    assert (keys != expected_keys).float().mean() < 0.01
    torch.testing.assert_close(
        given[1].float(), expected[1].float(), rtol=0, atol=0, equal_nan=True
    )
    last = given[1][:, -1, -1].float()
    assert sorted(last[last.abs() > 400].tolist()) == [-448, 448]
    assert last.isnan().sum() == 1


def test_what_eight_bits_keep_is_within_a_sixteenth() -> None:
    """Three bits behind the first one: the nearest number is at most half a step away."""
    qkv = random_tensor(1, 12, 4 * 64, dtype=torch.float32)
    keys, values = memories(1, 64, torch.float8_e4m3fn)
    options: dict[str, Any] = places(*((0, n) for n in range(12)))
    options |= {"block_table": BLOCK_TABLE, "block_size": BLOCK_SIZE}
    options |= {"cos": torch.ones(12, 64), "sin": torch.zeros(12, 64)}

    cache_write.write_cache(qkv, keys, values, **options)

    rows = BLOCK_TABLE[0].long().repeat_interleave(BLOCK_SIZE) * BLOCK_SIZE
    rows += torch.arange(12) % BLOCK_SIZE
    kept = torch.cat([keys[rows, 0].float(), values[rows, 0].float()], dim=-1)
    torch.testing.assert_close(kept, qkv[:, 128:], rtol=1 / 16, atol=2**-10)


def test_a_step_without_tokens_writes_nothing() -> None:
    keys, values = memories(1, 4, torch.float32)
    table = torch.zeros(1, 4)

    query = cache_write.write_cache(
        torch.empty(0, 16),
        keys,
        values,
        **places(),
        block_table=BLOCK_TABLE,
        block_size=BLOCK_SIZE,
        cos=table,
        sin=table,
    )

    assert query.shape == (0, 2, 4)
    assert not keys.any()
    assert not values.any()
