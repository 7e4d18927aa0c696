"""Masks on the device: what they leave of a row's logits, and what is drawn from it."""

from typing import Any

import numpy as np
import pytest

from stepahead.gpu.draws import WIDE
from stepahead.gpu.masks import allowed_tokens, apply_masks
from stepahead.gpu.row_failures import NOT_NUMBERS
from stepahead.gpu.sampling import sample
from stepahead.messages import Ints, frozen_longs

from .test_sampling import make_logits, make_rows

VOCAB = 1_000
SHARES = [0.0005, 0.3, 0.5, 0.97, 1.0]  # of a vocabulary that masks allow


def make_mask(share: float, vocab: int, seed: int = 0) -> Ints:
    """About this share of a vocabulary, token 3 among it."""
    bits = np.zeros(-(-vocab // 32) * 32, dtype=np.bool_)
    bits[:vocab] = np.random.default_rng(seed).random(vocab) < share
    bits[3] = True
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


@pytest.mark.parametrize("share", SHARES)
def test_a_mask_leaves_what_it_allows_as_it_was(share: float) -> None:
    logits = make_logits(3, vocab=VOCAB)
    before = logits.copy()
    mask = make_mask(share, VOCAB)
    allowed = allowed_tokens(mask, VOCAB)

    is_narrow = apply_masks(logits, frozen_longs([2, 5, 7]), {5: mask})

    assert np.array_equal(logits[[0, 2]], before[[0, 2]])
    assert np.array_equal(logits[1][allowed], before[1][allowed])
    assert (logits[1][~allowed] == -np.inf).all()
    assert is_narrow.tolist() == [False, allowed.mean() <= 0.5, False]


@pytest.mark.parametrize("share", [0.3, 0.97])
def test_what_is_not_a_number_fails_a_row_only_where_the_mask_allows_it(share: float) -> None:
    mask = make_mask(share, VOCAB)
    forbidden = int((~allowed_tokens(mask, VOCAB)).nonzero()[0][0])
    logits = make_logits(2, vocab=VOCAB)
    logits[0, 3] = logits[1, forbidden] = np.nan

    apply_masks(logits, frozen_longs([0, 1]), {0: mask, 1: mask})
    drawn = sample(logits, make_rows(2))

    assert drawn[0] == NOT_NUMBERS
    assert allowed_tokens(mask, VOCAB)[drawn[1]]


def test_a_mask_that_is_shorter_than_the_vocabulary_allows_nothing_beyond_its_end() -> None:
    logits = make_logits(1, vocab=101)
    mask = make_mask(1.0, 64)

    apply_masks(logits, frozen_longs([0]), {0: mask})

    assert np.isfinite(logits[0]).nonzero()[0].tolist() == list(range(64))
    assert allowed_tokens(mask, 101).nonzero()[0].tolist() == list(range(64))


@pytest.mark.parametrize("vocab", [VOCAB, WIDE + 10])
@pytest.mark.parametrize(
    "columns", [{}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.05}, {"typical_p": 0.7}], ids=str
)
def test_a_narrow_row_draws_what_it_draws_as_any_other(vocab: int, columns: dict[str, Any]) -> None:
    count = 20
    logits = make_logits(count, vocab=vocab)
    rows = make_rows(count, temperature=np.linspace(0, 2, count), **columns)
    masks = {row: make_mask(SHARES[row % 5], vocab, row) for row in range(0, count, 2)}

    is_narrow = apply_masks(logits, frozen_longs(range(count)), masks)
    drawn = sample(logits.copy(), rows, is_narrow)

    assert 0 < np.count_nonzero(is_narrow) < count
    assert drawn.tolist() == sample(logits.copy(), rows).tolist()
    for row, mask in masks.items():
        assert allowed_tokens(mask, vocab)[drawn[row]]
