"""Checks of what turns logits into tokens."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .. import adjust, cuts, gumbel
from .. import sampling_line as line
from . import wish_rows
from .check import Bench, Check, Pair

_SEEDS = (0, -1, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0)
_ROWS = ((0, 0), (1, 5), (4, 131_071), (-1, 0), (2, 9), (3, 1))  # slot and position of each


def _tables() -> dict[str, Any]:
    slots, positions = torch.tensor(_ROWS, dtype=torch.int32).T.contiguous()
    return {
        "slots": slots,
        "positions": positions,
        "temperature": torch.tensor([1.0, 0.0, 0.7, 1e-5, 30.0]),
        "seed": torch.tensor(_SEEDS, dtype=torch.int64),
        "index": torch.tensor([0, 1, 7, 2**31 - 1, 0], dtype=torch.int32),
    }


def _sampled(bench: Bench, vocab: int, padding: int) -> Iterator[Pair]:
    tables = _tables()
    logits = bench.random(vocab, len(_ROWS), vocab, padding=padding)
    given = gumbel.sample_gumbel(bench.there(logits), **bench.there(tables))
    yield Pair(given, gumbel.sample_gumbel_reference(logits, **tables))


def _cut(bench: Bench, vocab: int, padding: int) -> Iterator[Pair]:
    """Rows by top-p, by top-k, by both, and by min-p."""
    lines = torch.zeros(4, line.WIDTH.value, dtype=torch.int32)
    line.floats(lines, line.TEMPERATURE)[:] = torch.tensor([1.3, 0.5, 0.1, 1.0])
    line.ints(lines, line.TOP_K)[:] = torch.tensor([0, 50, 3, 0])
    line.floats(lines, line.TOP_P)[:] = torch.tensor([0.9, 1.0, 0.7, 1.0])
    line.floats(lines, line.LEAST_LOG_SHARE)[:] = torch.tensor([float("-inf")] * 3 + [-2.0])
    logits = bench.random(vocab, 4, vocab, padding=padding, scale=3.0)
    slots = torch.arange(4, dtype=torch.int32)
    given = cuts.find_cuts(*bench.there((logits, slots, lines)), has_top=True, has_top_p=True)
    expected = cuts.find_cuts_reference(logits, slots, lines, has_top=True, has_top_p=True)
    yield Pair(given, expected)


def _adjusted(bench: Bench, vocab: int, padding: int) -> Iterator[Pair]:
    wishes = wish_rows.example(vocab, vocab)
    masks = wishes.masks and adjust.RowMasks(*bench.there((wishes.masks.words, wishes.masks.rows)))
    fields = {name: bench.there(getattr(wishes, name)) for name in wishes.__slots__}
    there = adjust.Wishes(**(fields | {"masks": masks}))
    logits = bench.random(vocab, len(wish_rows.ROWS), vocab, padding=padding)
    rows, positions = wish_rows.ROWS, wish_rows.POSITIONS
    rows_there, positions_there = bench.there((rows, positions))
    adjust.count_tokens(rows_there, positions_there, there)
    given = adjust.adjust(bench.there(logits), rows_there, positions_there, there)
    adjust.count_tokens_reference(rows, positions, wishes)
    expected = adjust.adjust_reference(logits.clone(), rows, positions, wishes)
    yield Pair(line.ints(there.lines, line.COUNTED), line.ints(wishes.lines, line.COUNTED))
    yield Pair(given.cpu()[rows >= 0], expected[rows >= 0])


_SHAPES = ((100, 3), (9_000, 0))  # tokens, and what lies between rows
_KERNELS = (
    (
        "sampling with noise",
        _sampled,
        (gumbel.gumbel_candidates_kernel, gumbel.gumbel_choice_kernel),
    ),
    (
        "top-k, top-p and min-p",
        _cut,
        (cuts.ranges_kernel, cuts.survey_kernel, cuts.gather_kernel, cuts.search_kernel),
    ),
    ("penalties, biases, bans and masks", _adjusted, (adjust.count_kernel, adjust.adjust_kernel)),
)
CHECKS = tuple(
    Check(f"{name} of {vocab:,} tokens", partial(compare, vocab=vocab, padding=padding), kernels)
    for name, compare, kernels in _KERNELS
    for vocab, padding in _SHAPES
)
