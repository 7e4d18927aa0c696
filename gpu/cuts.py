"""Cuts: the least logit of each row that top-k, top-p and min-p leave.

A row's cut has the same bits whatever is sampled beside it. So sums go along one row at a time, in
an order that its length alone decides.
"""

import numpy as np
from numpy.typing import NDArray

from ..messages.arrays import Bools, Floats, Ints, Longs

_CANDIDATES = (256, 4096)  # likeliest tokens looked at before a whole row is sorted


def cuts_of(scaled: Floats, top_k: Ints, top_p: Floats, min_p: Floats) -> Floats:
    """The least scaled logit that each row may sample; minus infinity where all may be.
    # scaled float32 [rows, vocab]"""
    cuts = np.full(len(scaled), -np.inf, dtype=np.float32)
    vocab = scaled.shape[1]
    has_top = ((top_k > 0) & (top_k < vocab)) | (top_p < 1)
    if has_top.any():
        wanted = np.flatnonzero(has_top)
        k = np.where((top_k > 0) & (top_k < vocab), top_k, vocab)[wanted]
        cuts[wanted] = _top_cuts(_some(scaled, wanted), k.astype(np.int64), top_p[wanted])
    has_min_p = min_p > 0
    if has_min_p.any():
        best = scaled.max(axis=1)
        log_share = np.log(min_p, where=has_min_p, out=np.full_like(min_p, -np.inf))
        cuts = np.maximum(cuts, best + log_share)
    return cuts


def _top_cuts(scaled: Floats, top_k: Longs, top_p: Floats) -> Floats:
    """Look at the likeliest candidates first, and at more where those do not suffice."""
    cuts = np.empty(len(scaled), dtype=np.float32)
    masses = _masses(scaled, (top_k >= scaled.shape[1]) & (top_p < 1))
    open_rows = np.arange(len(scaled))
    for wanted in (*_CANDIDATES, scaled.shape[1]):
        count = min(wanted, scaled.shape[1])
        likeliest = _likeliest(scaled, open_rows, count)
        found, is_settled = _cuts_among(
            likeliest, scaled.shape[1], top_k[open_rows], top_p[open_rows], masses[open_rows]
        )
        cuts[open_rows] = found
        open_rows = open_rows[~is_settled]
        if not len(open_rows):
            break
    return cuts


def _masses(scaled: Floats, is_wanted: Bools) -> NDArray[np.float64]:
    """How many times as likely as its likeliest token all of a row are together.  # [rows]"""
    masses = np.ones(len(scaled))
    for row in is_wanted.nonzero()[0].tolist():
        values = scaled[row]
        masses[row] = np.exp(values - values.max()).sum(dtype=np.float64)
    return masses


def _cuts_among(
    likeliest: Floats, vocab: int, top_k: Longs, top_p: Floats, masses: NDArray[np.float64]
) -> tuple[Floats, Bools]:
    """The cuts that these tokens of each row give, and where they are final.
    # [rows, count], in falling order"""
    rows, count = np.arange(len(likeliest)), likeliest.shape[1]
    cuts = likeliest[rows, np.minimum(top_k, count) - 1]
    k_is_off = top_k >= vocab
    # The last candidate says nothing of those behind it: they may tie with it or belong too.
    is_settled = (top_k < count) | (count == vocab)
    has_p = (top_p < 1).nonzero()[0]
    if len(has_p):
        of_p = likeliest[has_p]
        shares = np.exp((of_p - of_p[:, :1]).astype(np.float64))
        shares *= of_p >= cuts[has_p, None]
        reached = shares.cumsum(axis=1)  # one after the other, along each row
        # top-p shares are of what top-k kept: some of these tokens, or the whole vocabulary.
        mass = np.where(k_is_off[has_p], masses[has_p], reached[:, -1])
        likelier = reached - shares
        is_kept = (shares > 0) & (likelier < (top_p[has_p] * mass)[:, None])
        num_kept = is_kept.sum(axis=1).clip(min=1)
        cuts[has_p] = of_p[np.arange(len(of_p)), num_kept - 1]
        is_settled[has_p] |= k_is_off[has_p] & (num_kept < count)
    return cuts, is_settled


def _likeliest(values: Floats, rows: Longs, count: int) -> Floats:
    """The largest of each of these rows, falling.  # [rows, count]"""
    found: Floats = np.empty((len(rows), count), dtype=np.float32)
    first = values.shape[1] - count
    for line, row in zip(found, rows.tolist(), strict=True):
        largest = np.partition(values[row], first)[first:] if first else values[row].copy()
        largest.sort()
        line[:] = largest[::-1]
    return found


def _some(values: Floats, rows: Longs) -> Floats:
    return values if len(rows) == len(values) else values[rows]
