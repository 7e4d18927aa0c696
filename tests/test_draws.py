"""Draws from large vocabularies take the noise of few tokens, and are those of all tokens."""

import numpy as np
import pytest

from stepahead.gpu.draws import NEAR, WIDE, draw
from stepahead.gpu.noise import gumbel, noise_bits, row_keys
from stepahead.messages.arrays import Floats, Longs

COUNT, VOCAB = 60, WIDE + 901
KEYS = row_keys(np.arange(COUNT), np.arange(COUNT) + 5)


def with_all_noise(logits: Floats) -> Longs:
    key0, key1 = KEYS
    words = noise_bits(key0[:, None], key1[:, None], np.arange(VOCAB, dtype=np.uint32))
    winners: Longs = (gumbel(words) + logits).argmax(axis=1)
    return winners


def make_logits(spread: float) -> Floats:
    return np.random.default_rng(7).normal(0, spread, (COUNT, VOCAB)).astype(np.float32)


@pytest.mark.parametrize("spread", [0, 1e-6, 1, 3, 1e3, 1e7, 1e30])
@pytest.mark.parametrize("are_whole", [True, False], ids=["whole numbers", "any"])
def test_a_row_draws_what_the_noise_of_all_its_tokens_gives(spread: float, are_whole: bool) -> None:
    """With equal logits, too, and with such as noise is lost in: then the first of equal ones."""
    logits = make_logits(spread)
    if are_whole:
        logits = logits.round()

    assert draw(logits, None, *KEYS).tolist() == with_all_noise(logits).tolist()


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_and_so_does_what_is_kept_of_a_row(share: float) -> None:
    kept = np.random.default_rng(8).random((COUNT, VOCAB)) < share
    kept[:, 9] = True
    logits = np.where(kept, make_logits(2), np.float32(-np.inf))

    drawn = draw(logits, kept, *KEYS)

    assert drawn.tolist() == with_all_noise(logits).tolist()
    assert drawn.tolist() == draw(logits, None, *KEYS).tolist()


def test_tokens_far_below_the_likeliest_win_as_often_as_they_should() -> None:
    """A thousand of them stand against one: together they are as likely as it is."""
    far = np.float32(-(NEAR + 1))
    logits = np.full((COUNT, VOCAB), -np.inf, dtype=np.float32)
    logits[:, 0], logits[:, 1 : 1 + round(float(np.exp(-far)))] = 0, far

    num_far = np.count_nonzero(draw(logits, None, *KEYS))

    assert abs(num_far - COUNT / 2) < 4 * np.sqrt(COUNT / 4)
