"""Locally typical sampling (Meister et al. 2023): keep what surprises as much as is expected."""

import numpy as np
from numpy.typing import NDArray

from ..messages import Bools, Floats

_CANDIDATES = (256, 4_096)  # nearest tokens looked at before a whole row is sorted


def is_typical(logits: Floats, kept: Bools, mass: Floats) -> Bools:
    """Which of the tokens that are kept typical-p keeps: those whose surprise is nearest to the
    entropy, until they reach the row's mass.  # [rows, vocab]; mass [rows]"""
    found = np.zeros_like(kept)
    for row, share in enumerate(mass.tolist()):
        ids = kept[row].nonzero()[0]
        values = logits[row, ids].astype(np.float64)
        surprise = values.max() - values
        shares = np.exp(-surprise)
        total = shares.sum()
        shares /= total
        surprise += np.log(total)
        distance = np.abs(surprise - (shares * surprise).sum())
        found[row, ids[distance <= _reach(distance, shares, share)]] = True
    return found


def _reach(distance: NDArray[np.float64], shares: NDArray[np.float64], mass: float) -> float:
    """How far away the last token is that is needed for this mass.  # both [tokens]"""
    for count in (*_CANDIDATES, len(distance)):
        near = np.arange(len(distance))
        if count < len(distance):
            near = (distance <= np.partition(distance, count)[count]).nonzero()[0]
        order = near[distance[near].argsort(kind="stable")]
        reached = shares[order].cumsum()
        if reached[-1] >= mass:
            break
    last = min(int(np.count_nonzero(reached < mass)), len(order) - 1)
    return float(distance[order[last]])
