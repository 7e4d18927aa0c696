"""Both attention kernels against one reference, over memory in scattered blocks."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch
from torch import Tensor

from stepahead.gpu.attention import Scores

from .interpreter import (
    DTYPES,
    PagedRows,
    assert_close,
    paged_attention,
    random_tensor,
    split_decode,
)

BLOCK_SIZE = 16
HEADS = {"grouped": (4, 2, 16), "odd": (6, 2, 12), "single": (1, 1, 32), "wide": (2, 1, 256)}
FORMS = {
    "plain": Scores(0.3),
    "window": Scores(0.3, window=20),
    "softcap": Scores(0.9, softcap=1.5),
    "sinks": Scores(0.3, sinks=torch.tensor([1.0, -2.0, 0.5, 4.0, 0.0, -9.0])),
}


def rows_of(*shape: tuple[int, int]) -> PagedRows:
    """Rows of so many tokens and so many positions in all; no positions is padding. Each row's
    blocks are scattered, those it has not reached are out of bounds."""
    lengths = torch.tensor([length for _, length in shape], dtype=torch.int32)
    starts = torch.tensor([0, *(tokens for tokens, _ in shape)]).cumsum(0).int()
    slots = torch.randperm(len(shape), generator=torch.Generator().manual_seed(1)).int()
    table = torch.full((len(shape), 1 + int(lengths.max()) // BLOCK_SIZE), 2**30, dtype=torch.int32)
    counts = [-(-length // BLOCK_SIZE) for _, length in shape]
    ends = torch.tensor(counts).cumsum(0)
    blocks = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(2)).int()
    for slot, own in zip(slots.tolist(), blocks.tensor_split(ends[:-1]), strict=True):
        table[slot, : len(own)] = own
    slots[lengths == 0] = -1
    return PagedRows(starts, lengths, slots, table, BLOCK_SIZE, max(tokens for tokens, _ in shape))


def assert_attends(
    attend: Callable[..., Tensor],
    rows: PagedRows,
    heads: str,
    form: str,
    dtype: torch.dtype,
    *,
    kept: torch.dtype | None = None,
    kv_scales: Tensor | None = None,
) -> None:
    num_heads, kv_heads, dim = HEADS[heads]
    tokens = int(rows.starts[-1])
    num_blocks = int((rows.lengths + BLOCK_SIZE - 1).div(BLOCK_SIZE, rounding_mode="floor").sum())
    query = random_tensor(1, tokens, num_heads, dim, dtype=dtype, padding=5)
    shape = num_blocks * BLOCK_SIZE, kv_heads, dim
    keys, values = (random_tensor(n, *shape, dtype=kept or dtype, padding=3) for n in (2, 3))
    scores = FORMS[form]
    if scores.sinks is not None:
        scores = replace(scores, sinks=scores.sinks[:num_heads])

    given, expected = (
        function(query, keys, values, rows, scores, kv_scales=kv_scales)
        for function in (attend, paged_attention.paged_attention_reference)
    )

    owner = torch.arange(len(rows.slots)).repeat_interleave(rows.starts.diff().long())
    is_real = rows.slots[owner] >= 0
    assert_close(given[is_real], expected[is_real], ulps=4 if dtype == torch.float32 else 2)


split_in_four: Callable[..., Tensor] = partial(split_decode.split_decode, splits=4)
CASES = [
    *(("plain", dtype) for dtype in DTYPES),
    ("window", torch.float32),
    ("softcap", torch.bfloat16),
]
MIXED = rows_of((1, 1), (3, 70), (0, 0), (1, 16), (70, 150), (1, 64), (1, 65), (17, 33), (2, 0))
DECODE = rows_of((1, 1), (1, 16), (1, 17), (1, 0), (1, 64), (1, 65), (1, 130))
LONG = rows_of((1, 1100))


@pytest.mark.parametrize(("form", "dtype"), CASES)
def test_prefill_and_decode_rows_attend_together(form: str, dtype: torch.dtype) -> None:
    assert_attends(paged_attention.paged_attention, MIXED, "grouped", form, dtype)


@pytest.mark.parametrize("heads", ["odd", "single", "wide"])
def test_any_number_of_heads_and_any_width_fills_a_tile(heads: str) -> None:
    assert_attends(paged_attention.paged_attention, MIXED, heads, "plain", torch.bfloat16)
    assert_attends(split_in_four, DECODE, heads, "plain", torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("form", "is_scaled"), [("plain", False), ("softcap", True)])
def test_keys_and_values_of_eight_bits_attend_as_the_numbers_they_stand_for(
    form: str, is_scaled: bool, dtype: torch.dtype
) -> None:
    """Exactly but for the rounding of the softmax: a tile is widened before it is multiplied."""
    kept = torch.float8_e4m3fn
    scales = torch.tensor([[0.5, 0.07], [1.7, 3.0]]) if is_scaled else None
    assert_widened = partial(assert_attends, kept=kept, kv_scales=scales)

    assert_widened(paged_attention.paged_attention, MIXED, "grouped", form, dtype)
    assert_widened(split_in_four, DECODE, "grouped", form, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_over_eight_bits_is_near_that_over_the_numbers_themselves(
    dtype: torch.dtype,
) -> None:
    query = random_tensor(1, len(DECODE.slots), 4, 64, dtype=dtype)
    keys, values = (random_tensor(n, 22 * BLOCK_SIZE, 2, 64, dtype=dtype) for n in (2, 3))
    kept_keys, kept_values = keys.to(torch.float8_e4m3fn), values.to(torch.float8_e4m3fn)
    scores = Scores(64**-0.5)

    given = split_in_four(query, kept_keys, kept_values, DECODE, scores)
    expected = paged_attention.paged_attention_reference(query, keys, values, DECODE, scores)

    is_real = DECODE.slots >= 0
    difference = (given - expected)[is_real].float()
    assert difference.norm() / expected[is_real].float().norm() < 0.03


def test_sinks_take_their_share() -> None:
    assert_attends(paged_attention.paged_attention, MIXED, "odd", "sinks", torch.float32)
    assert_attends(split_in_four, DECODE, "odd", "sinks", torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_one_token_take_small_tiles(dtype: torch.dtype) -> None:
    assert_attends(paged_attention.paged_attention, DECODE, "grouped", "plain", dtype)


@pytest.mark.parametrize(("form", "dtype"), CASES)
def test_split_rows_are_merged_to_the_same(form: str, dtype: torch.dtype) -> None:
    assert_attends(split_in_four, DECODE, "grouped", form, dtype)


def test_a_long_row_has_something_for_every_split() -> None:
    assert_attends(split_decode.split_decode, LONG, "odd", "plain", torch.bfloat16)


@pytest.mark.parametrize("attend", [paged_attention.paged_attention, split_decode.split_decode])
def test_no_token_is_no_launch(attend: Callable[..., Tensor]) -> None:
    none = torch.empty(0, dtype=torch.int32)
    rows = PagedRows(torch.zeros(1, dtype=torch.int32), none, none, none.view(0, 1), BLOCK_SIZE, 0)
    memory = torch.empty(0, 2, 16)

    assert attend(torch.empty(0, 4, 16), memory, memory, rows, Scores(1.0)).shape == (0, 4, 16)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(60))
def test_random_rows_attend_as_the_reference(seed: int) -> None:
    random = Random(seed)
    has_one = random.random() < 0.4
    shape = []
    for _ in range(random.randint(1, 6)):
        tokens = 1 if has_one else random.choice((0, 1, 2, 15, 64, 65, random.randint(1, 150)))
        length = random.choice((tokens, tokens + random.randint(0, 300)))
        shape.append((tokens, length if tokens else 0))
    heads, dtype = random.choice(list(HEADS)), random.choice(DTYPES)
    form = random.choice(list(FORMS))
    kinds = [paged_attention.paged_attention, *([split_in_four] if has_one else [])]
    if any(tokens for tokens, _ in shape):
        assert_attends(random.choice(kinds), rows_of(*shape), heads, form, dtype)
