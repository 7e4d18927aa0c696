"""One draw per row: the largest of logit plus Gumbel noise among the tokens that were kept.

Noise takes two logarithms, ten times as long as the random word it is made of. It falls as its word
grows, so words alone tell which tokens far below the likeliest may win at all: a few in a thousand.
"""

import math

import numpy as np

from ..messages import Bools, Floats, Longs
from .noise import Words, gumbel, noise_bits

BLOCK = 2**17  # logits that are looked at together: they stay in a processor's cache
WIDE = 4_096  # logits of a row from which on it is looked at alone
NEAR = 6  # a token so far below the likeliest wins against it once in 400 times


def draw(logits: Floats, kept: Bools | None, key0: Words, key1: Words) -> Longs:
    """A token id for every row of logits [rows, vocab], of whose tokens each keeps at least one;
    None: all of them. What is drawn does not depend on what else is drawn."""
    drawn = np.empty(len(logits), dtype=np.int64)
    if logits.shape[1] > WIDE:
        for row, values in enumerate(logits):
            drawn[row] = _draw_row(
                values, None if kept is None else kept[row], key0[row], key1[row]
            )
        return drawn
    size = max(BLOCK // logits.shape[1], 1)
    for start in range(0, len(logits), size):
        block = slice(start, start + size)
        part = None if kept is None else kept[block]
        drawn[block] = _draw_block(logits[block], part, key0[block], key1[block])
    return drawn


def _draw_row(logits: Floats, kept: Bools | None, key0: np.uint32, key1: np.uint32) -> int:
    if kept is None:
        return _winner(logits, key0, key1, _every_id(logits))
    ids = kept.nonzero()[0]
    return draw_among(logits[ids], ids, key0, key1)


def draw_among(logits: Floats, ids: Longs, key0: np.uint32, key1: np.uint32) -> int:
    """One of these ids of one row, whose logits are given; what a draw from all of the row gives
    that keeps no other."""
    return int(ids[_winner(logits, key0, key1, ids.astype(np.uint32))])


def _winner(logits: Floats, key0: np.uint32, key1: np.uint32, ids: Words) -> int:
    """The place where logit plus noise is largest, of equal ones the first."""
    words = noise_bits(key0, key1, ids)
    bound = logits.max() - np.float32(NEAR)
    may_win = logits >= bound
    if np.count_nonzero(may_win) < len(logits):
        near = may_win.nonzero()[0]
        best = (gumbel(words[near]) + logits[near]).max()
        may_win |= words <= _most_word(float(best) - float(bound))
    places = may_win.nonzero()[0]
    return int(places[(gumbel(words[places]) + logits[places]).argmax()])


def _most_word(noise: float) -> np.uint32:
    """No larger word gives this noise or more, however its logarithms are rounded."""
    share = -math.expm1(-math.exp(min(-noise, 100.0)))
    return np.uint32(min(share * 2**32 * 1.001 + 1_024, 2**32 - 1))


def _draw_block(logits: Floats, kept: Bools | None, key0: Words, key1: Words) -> Longs:
    if kept is None:
        ids = _every_id(logits)
        likeliest: Longs = _noisy(logits, key0[:, None], key1[:, None], ids).argmax(axis=1)
        return likeliest
    rows, token_ids = kept.nonzero()
    ids = token_ids.astype(np.uint32)
    noisy = _noisy(logits[rows, token_ids], key0[rows], key1[rows], ids)
    counts = kept.sum(axis=1)
    starts = counts.cumsum() - counts
    best = np.maximum.reduceat(noisy, starts)
    is_best = (noisy == best.repeat(counts)).nonzero()[0]
    first = np.searchsorted(is_best, starts)  # where two are equal, the first
    winners: Longs = token_ids[is_best[first]]
    return winners


def _noisy(logits: Floats, key0: Words | np.uint32, key1: Words | np.uint32, ids: Words) -> Floats:
    noise = gumbel(noise_bits(key0, key1, ids))
    noise += logits
    return noise


def _every_id(logits: Floats) -> Words:
    return np.arange(logits.shape[-1], dtype=np.uint32)
