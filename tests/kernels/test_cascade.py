"""Attention of rows that share leading blocks: by way of the groups it is that of every row."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from stepahead.gpu.attention import Scores
from stepahead.gpu.cuda.shared_prefix import Savings, SharedPrefix
from stepahead.messages import RowState, StepPlan, frozen_ints, frozen_longs
from stepahead.messages.arrays import NO_INTS, NO_LONGS

from .interpreter import DTYPES, PagedRows, assert_close, paged_attention, random_tensor

from stepahead.gpu.cuda.attention import Splitting, attend, shared_splits, splitting  # isort: skip
from stepahead.gpu.kernels import cascade  # isort: skip
from stepahead.gpu.kernels.attention_parts import SharedRuns  # isort: skip

BLOCK_SIZE = 16
HEADS = {
    "grouped": (4, 2, 16),
    "odd": (6, 2, 12),
    "single": (1, 1, 32),
    "one key": (16, 1, 16),
    "wide": (2, 1, 256),
}
FORMS = {
    "plain": Scores(0.3),
    "softcap": Scores(0.9, softcap=1.5),
    "sinks": Scores(0.3, sinks=torch.tensor([1.0, -2.0, 0.5, 4.0, 0.0, -9.0])),
}
Row = tuple[str, int, int]
"""Name of its group ("" for none), blocks it shares with it, positions in all; none: padding."""


def step_of(*rows: Row, tile: int = 8, tokens: Sequence[int] | None = None) -> PagedRows:
    """Rows of one token, or of so many as `tokens` says; the longest of a group names its blocks.
    All blocks are scattered, those a row has not reached are out of bounds."""
    order = np.random.default_rng(1).permutation(sum(length for *_, length in rows) + 1)
    heads: dict[str, list[int]] = {}
    table = torch.full((len(rows), 2 + max(row[2] for row in rows) // BLOCK_SIZE), 2**30)
    fresh = iter(order.tolist())
    for row, (name, shared, length) in enumerate(rows):
        count = -(-length // BLOCK_SIZE)
        blocks = heads.setdefault(name, [])[:shared] if name else []
        blocks += [next(fresh) for _ in range(count - len(blocks))]
        if name and len(blocks) > len(heads[name]):
            heads[name] += blocks[len(heads[name]) : shared]
        table[row, :count] = torch.tensor(blocks, dtype=table.dtype)
    lengths = torch.tensor([length for *_, length in rows], dtype=torch.int32)
    slots = torch.arange(len(rows), dtype=torch.int32)
    slots[lengths == 0] = -1
    starts = torch.tensor([0, *(tokens or [1] * len(rows))]).cumsum(0).int()
    return PagedRows(
        starts, lengths, slots, table.int(), BLOCK_SIZE, max(tokens or [1]), shared=runs(rows, tile)
    )


def runs(rows: Sequence[Row], tile: int) -> SharedRuns:
    order: list[int] = []
    tiles = [(0, 0, 0, 0)]  # padding
    for name in sorted({row[0] for row in rows} - {""}):
        own = [place for place, row in enumerate(rows) if row[0] == name]
        for first in range(0, len(own), tile):
            part = own[first : first + tile]
            tiles.append((len(order), len(part), part[0], rows[own[0]][1] * BLOCK_SIZE))
            order += part
    order += [0] * (len(rows) - len(order))
    lengths = torch.tensor([row[1] * BLOCK_SIZE if row[0] else 0 for row in rows])
    return SharedRuns(lengths.int(), torch.tensor(order).int(), torch.tensor(tiles).int())


def memory_of(
    rows: PagedRows, heads: str, dtype: torch.dtype, kept: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values."""
    num_heads, kv_heads, dim = HEADS[heads]
    num_blocks = 1 + int(rows.block_table[rows.block_table < 2**30].max())
    shape = num_blocks * BLOCK_SIZE, kv_heads, dim
    keys, values = (random_tensor(n, *shape, dtype=kept or dtype, padding=3) for n in (2, 3))
    query = random_tensor(1, int(rows.starts[-1]), num_heads, dim, dtype=dtype, padding=5)
    return query, keys, values


def scores_of(form: str, heads: str) -> Scores:
    scores = FORMS[form]
    return (
        scores if scores.sinks is None else replace(scores, sinks=scores.sinks[: HEADS[heads][0]])
    )


def assert_cascades(
    rows: PagedRows,
    heads: str = "grouped",
    form: str = "plain",
    dtype: torch.dtype = torch.float32,
    *,
    kept: torch.dtype | None = None,
    kv_scales: Tensor | None = None,
) -> None:
    """By kernels and by torch it is what every row for itself attends to."""
    assert rows.shared is not None
    given = (*memory_of(rows, heads, dtype, kept), rows, scores_of(form, heads))

    kernels = cascade.cascade(*given, rows.shared, splits=2, shared_splits=2, kv_scales=kv_scales)
    torchs = cascade.cascade_reference(*given, rows.shared, kv_scales=kv_scales)
    expected = paged_attention.paged_attention_reference(*given, kv_scales=kv_scales)

    counts = rows.starts.diff()
    decodes = rows.starts[:-1][(counts == 1) & (rows.slots >= 0)].long()
    assert_close(kernels[decodes], expected[decodes], ulps=4 if dtype == torch.float32 else 2)
    assert_close(torchs[decodes], expected[decodes], ulps=4)


EDGES = step_of(
    ("a", 2, 33), ("", 0, 20), ("b", 5, 96), ("a", 2, 48), ("", 0, 0), ("b", 5, 97), ("c", 4, 65),
)  # fmt: skip
LONG = step_of(("a", 20, 321), ("a", 20, 400))  # more than one split has something to see


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *(("plain", dtype) for dtype in DTYPES),
        ("softcap", torch.bfloat16),
        ("sinks", torch.float16),
    ],
)
def test_groups_of_several_sizes_attend_as_their_rows_do(form: str, dtype: torch.dtype) -> None:
    """Among them a group of one, rows that share nothing and padding; rests at block edges."""
    assert_cascades(EDGES, "grouped", form, dtype)


@pytest.mark.parametrize("heads", ["odd", "single", "wide"])
def test_any_number_of_heads_and_any_width_fills_a_tile(heads: str) -> None:
    assert_cascades(EDGES, heads, "sinks", torch.bfloat16)


def test_what_is_shared_is_split_among_programs() -> None:
    assert_cascades(LONG, "odd", "plain", torch.float32)


def test_a_group_may_take_several_tiles() -> None:
    assert_cascades(step_of(*(("a", 3, 49 + 7 * n) for n in range(5)), tile=2))


def test_a_full_tile_has_a_line_for_every_query_head() -> None:
    size = cascade.rows_per_tile(16, 1)

    assert size == 4
    rows = step_of(*(("a", 1, 17 + n) for n in range(size + 1)), tile=size)
    assert_cascades(rows, "one key", dtype=torch.bfloat16)


def test_rows_of_more_tokens_are_left_to_others() -> None:
    rows = step_of(("a", 2, 40), ("", 0, 30), ("a", 2, 33), tokens=(1, 5, 1))

    assert_cascades(rows)


def test_shared_keys_of_eight_bits_are_the_numbers_they_stand_for() -> None:
    scales = torch.tensor([[0.5, 0.07], [1.7, 3.0]])

    assert_cascades(
        EDGES, "grouped", "plain", torch.bfloat16, kept=torch.float8_e4m3fn, kv_scales=scales
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_parts_of_what_is_shared_are_those_of_the_reference(form: str) -> None:
    assert LONG.shared is not None
    given = (*memory_of(LONG, "odd", torch.float32), LONG, scores_of(form, "odd"), LONG.shared)

    parts = cascade.attend_shared(*given, splits=2)
    out, best, total = cascade.attend_shared_reference(*given)

    dim = out.shape[-1]
    split = [
        (part[..., :dim], part[..., dim], part[..., dim + 1])
        for part in parts.numbers.unbind(dim=2)
    ]
    assert_close(torch.stack([part[1] for part in split]).amax(dim=0), best, ulps=4)
    assert_close(cascade.merge_reference(split), out / total[..., None], ulps=4)


def test_nothing_to_attend_is_no_launch() -> None:
    none = torch.empty(0, dtype=torch.int32)
    shared = SharedRuns(none, none, none.view(0, 4))
    rows = PagedRows(torch.zeros(1, dtype=torch.int32), none, none, none.view(0, 1), BLOCK_SIZE, 0)
    memory = torch.empty(0, 2, 16)

    out = cascade.cascade(
        torch.empty(0, 4, 16), memory, memory, rows, Scores(1.0), shared, splits=4
    )

    assert out.shape == (0, 4, 16)


# Which kernel attends

GPU: dict[str, int] = {"processors": 132, "most_positions": 32_768}
SHORT = GPU | {"most_positions": 128}


def test_few_rows_are_split_more_often_and_finer() -> None:
    assert splitting(1, 8, **GPU) == Splitting(32, 1)
    assert splitting(16, 8, **GPU) == Splitting(8, 1)
    assert splitting(256, 8, **GPU) == Splitting(4, 4)
    assert splitting(512, 8, **GPU) == Splitting(1, 1)


def test_no_more_splits_are_made_than_there_can_be_keys_for() -> None:
    assert splitting(1, 8, **SHORT) == Splitting(2, 1)
    assert splitting(64, 8, **SHORT) == Splitting(1, 4)
    assert shared_splits(1, 8, **SHORT) == 1


def test_what_groups_share_is_split_more_often_the_fewer_tiles_there_are() -> None:
    assert shared_splits(1, 8, **GPU) == 16
    assert shared_splits(16, 8, **GPU) == 4
    assert shared_splits(0, 8, **GPU) == 16


DECODE = step_of(*(("a", 2, 33 + 5 * n) for n in range(3)))
MANY = step_of(*(("", 0, 15 + n) for n in range(8)))
MIXED = step_of(("a", 2, 40), ("", 0, 70), ("a", 2, 33), ("", 0, 0), tokens=(1, 20, 1, 1))


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        (DECODE, "sinks"),
        (DECODE, "window"),  # behind which nothing is shared
        (replace(DECODE, shared=None), "softcap"),
        (replace(MANY, shared=None), "plain"),  # enough to keep one multiprocessor busy unsplit
        (MIXED, "plain"),
        (replace(MIXED, has_singles=True), "sinks"),
        (replace(MIXED, has_singles=True, shared=None), "window"),
    ],
)
def test_every_kernel_there_is_to_choose_attends_to_the_same(rows: PagedRows, form: str) -> None:
    scores = Scores(0.3, window=40) if form == "window" else scores_of(form, "grouped")
    given = (*memory_of(rows, "grouped", torch.float32), rows, scores)

    out = attend(*given, processors=1)

    expected = paged_attention.paged_attention_reference(*given)
    owner = torch.arange(len(rows.slots)).repeat_interleave(rows.starts.diff().long())
    is_real = rows.slots[owner] >= 0
    assert_close(out[is_real], expected[is_real], ulps=4)


def test_a_window_that_no_row_can_leave_is_none() -> None:
    given = memory_of(DECODE, "grouped", torch.float32)
    width = DECODE.block_table.shape[1] * BLOCK_SIZE
    unshared = replace(DECODE, shared=None)

    out = attend(*given, DECODE, Scores(0.3, window=width))

    assert_close(out, attend(*given, unshared, Scores(0.3)), ulps=4)


# From block tables to attention


def random_tables(random: Random, num_rows: int) -> list[list[int]]:
    """Tables that grow out of each other, as sequences of shared prefixes do."""
    tables: list[list[int]] = [[]]
    fresh = iter(random.sample(range(200), 200))
    for _ in range(num_rows):
        before = random.choice(tables)
        shared = before[: random.randint(0, len(before))]
        tables.append(shared + [next(fresh) for _ in range(random.randint(1, 6))])
    return tables[1:]


def random_step(random: Random) -> PagedRows:
    """Rows whose groups were found in random block tables, in a plan of few longer rows."""
    tables = random_tables(random, random.randint(1, 9))
    lengths = [len(blocks) * BLOCK_SIZE - random.randrange(BLOCK_SIZE) for blocks in tables]
    tokens = [1 if random.random() < 0.8 else random.randint(1, length) for length in lengths]
    new = tuple(
        RowState(slot, 1, NO_INTS, 0, frozen_ints(blocks), 0.0, 0, 1.0, 0.0, 0, 0, ())
        for slot, blocks in enumerate(tables)
    )
    slots = random.sample(range(len(tables)), len(tables))
    starts = [lengths[slot] - tokens[slot] for slot in slots]
    plan = StepPlan(
        1, new, NO_LONGS, NO_INTS, NO_INTS, frozen_longs(slots), frozen_ints([1] * len(slots)),
        frozen_ints(starts), frozen_ints([tokens[slot] for slot in slots]),
        np.ones(len(slots), dtype=bool),
    )  # fmt: skip
    finder = SharedPrefix(
        num_slots=len(tables),
        max_blocks=64,
        block_size=BLOCK_SIZE,
        rows_per_tile=random.choice((1, 2, 32)),
        savings=Savings(block_bytes=2, row_bytes=0, launch_bytes=0),
    )
    finder.apply(plan)
    found = finder.find(plan)
    num_tiles = 0 if found is None else len(found.tiles) + random.randint(0, 2)
    table = torch.full((len(tables), 64), 2**30, dtype=torch.int32)
    for slot, blocks in enumerate(tables):
        table[slot, : len(blocks)] = torch.tensor(blocks)
    return PagedRows(
        torch.tensor([0, *plan.lengths.tolist()]).cumsum(0).int(),
        torch.tensor([lengths[slot] for slot in slots]).int(),
        torch.tensor(slots).int(),
        table,
        BLOCK_SIZE,
        max(tokens),
        has_singles=True,
        shared=None
        if found is None
        else SharedRuns.of(torch.from_numpy(found.words(len(slots), num_tiles)), len(slots)),
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_groups_of_random_block_tables_attend_as_their_rows_do(seed: int) -> None:
    rows = random_step(Random(seed))
    if rows.shared is None:
        return
    form = Random(seed).choice(list(FORMS))
    given = (*memory_of(rows, "grouped", torch.float32), rows, scores_of(form, "grouped"))

    out = cascade.cascade_reference(*given, rows.shared)
    expected = paged_attention.paged_attention_reference(*given)

    decodes = rows.starts[:-1][rows.starts.diff() == 1].long()
    assert_close(out[decodes], expected[decodes], ulps=4)


def test_most_random_block_tables_have_groups() -> None:
    """Or else the test before this one shows nothing."""
    assert sum(random_step(Random(seed)).shared is not None for seed in range(40)) > 20


def assert_random_step_attends(seed: int, heads: str, form: str, dtype: torch.dtype) -> None:
    rows = random_step(Random(seed))
    given = (*memory_of(rows, heads, dtype), rows, scores_of(form, heads))

    out = attend(*given, processors=8)

    expected = paged_attention.paged_attention_reference(*given)
    assert_close(out, expected, ulps=4 if dtype == torch.float32 else 2)


@pytest.mark.parametrize("seed", range(3))
def test_kernels_attend_to_random_block_tables(seed: int) -> None:
    assert_random_step_attends(seed, "grouped", "plain", DTYPES[seed])


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(60))
def test_kernels_attend_to_many_random_block_tables(seed: int) -> None:
    random = Random(seed)
    heads, form = random.choice(list(HEADS)), random.choice(list(FORMS))
    assert_random_step_attends(seed, heads, form, random.choice(DTYPES))
