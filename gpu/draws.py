"""One draw per row: the largest of logit plus Gumbel noise among the tokens that were kept."""

import numpy as np

from ..messages import Bools, Floats, Longs
from .noise import Words, gumbel, noise_bits

BLOCK = 2**17  # logits that are looked at together: they stay in a processor's cache


def draw(logits: Floats, kept: Bools | None, key0: Words, key1: Words) -> Longs:
    """A token id for every row of logits [rows, vocab], of whose tokens each keeps at least one;
    None: all of them. What is drawn does not depend on what else is drawn."""
    drawn = np.empty(len(logits), dtype=np.int64)
    if kept is None and logits.shape[1] * 2 > BLOCK:
        for row, values in enumerate(logits):
            drawn[row] = _noisy(values, key0[row], key1[row], _every_id(logits)).argmax()
        return drawn
    size = max(BLOCK // logits.shape[1], 1)
    for start in range(0, len(logits), size):
        block = slice(start, start + size)
        part = None if kept is None else kept[block]
        drawn[block] = _draw_block(logits[block], part, key0[block], key1[block])
    return drawn


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
    return np.arange(logits.shape[1], dtype=np.uint32)
