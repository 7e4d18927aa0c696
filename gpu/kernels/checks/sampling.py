"""Checks of what turns logits into tokens."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .. import gumbel
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


CHECKS = tuple(
    Check(
        f"sampling with noise of {vocab:,} tokens",
        partial(_sampled, vocab=vocab, padding=padding),
        (gumbel.gumbel_candidates_kernel, gumbel.gumbel_choice_kernel),
    )
    for vocab, padding in ((100, 3), (9_000, 0))
)
