"""What top-k, top-p and min-p leave of a row has the same bits in any company."""

from typing import Any

import numpy as np
import pytest

from stepahead.gpu.cuts import cuts_of
from stepahead.gpu.sampling import sample
from stepahead.messages import Floats

from .sampling_reference import probabilities
from .test_sampling import make_logits, make_rows

WIDE = 40_000  # a library may share the sum of so wide a row among threads, where it is alone


def _cuts(logits: Floats, top_p: np.ndarray[Any, Any]) -> list[float]:
    off = np.zeros(len(top_p), dtype=np.int32)
    return list(cuts_of(logits, off, top_p, off.astype(np.float32)))


def test_top_p_at_its_very_edge_cuts_a_wide_row_alike_alone_and_in_a_batch() -> None:
    """Each top_p is what some of the likeliest tokens reach: a bit of difference in the sum over
    the vocabulary decides over the next token."""
    logits = make_logits(40, vocab=WIDE) * 1.5
    shares = np.exp(logits.astype(np.float64))
    shares /= shares.sum(axis=1, keepdims=True)
    edges = (-np.sort(-shares, axis=1)).cumsum(axis=1)[:, 5].astype(np.float32)

    together = _cuts(logits, edges)

    assert together == [_cuts(logits[[row]], edges[[row]])[0] for row in range(len(logits))]


@pytest.mark.parametrize("seed", range(4))
def test_any_part_of_a_batch_draws_what_the_whole_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 32
    logits = make_logits(count, vocab=700, seed=seed)
    columns = {
        "temperature": rng.choice([0, 0.5, 1, 30], count),
        "top_k": rng.choice([0, 1, 5, 300, 699, 700], count),
        "top_p": rng.choice([1e-6, 0.5, 0.97, 1], count),
        "min_p": rng.choice([0, 0.01, 1], count),
        "typical_p": rng.choice([1, 1e-6, 0.4, 0.95], count),
        "seed": rng.integers(0, 2**63, count),
        "positions": rng.integers(0, 5_000, count),
    }
    whole = sample(logits.copy(), make_rows(count, **columns))

    for size in (1, 2, 7, 20):
        part = rng.choice(count, size, replace=False)
        rows = make_rows(size, **{name: column[part] for name, column in columns.items()})
        assert sample(logits[part].copy(), rows).tolist() == whole[part].tolist()


@pytest.mark.parametrize("top_k", [0, 3, 300])
def test_top_p_keeps_what_reaches_it_and_no_more(top_k: int) -> None:
    logits = make_logits(1, vocab=700)
    for top_p in (0.05, 0.5, 0.9, 0.99):
        kept = probabilities(logits[0], top_k=top_k, top_p=top_p) > 0
        cut = cuts_of(
            logits, np.array([top_k]), np.array([top_p], np.float32), np.zeros(1, np.float32)
        )

        assert ((logits[0] >= cut) == kept).all()


@pytest.mark.parametrize("size", [3e38, -3e38])
def test_huge_logits_over_a_small_temperature_are_drawn_greedily(size: float) -> None:
    logits = np.full((1, 8), -abs(size), dtype=np.float32)
    logits[0, 3] = size / 2

    drawn = sample(logits, make_rows(1, temperature=1e-3, top_p=0.9, typical_p=0.9))

    assert drawn.tolist() == [3]
