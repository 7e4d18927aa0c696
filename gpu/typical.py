"""Locally typical sampling (Meister et al. 2023): keep what surprises as much as is expected."""

import numpy as np
from numpy.typing import NDArray

from ..messages import Bools


def is_typical(logits: NDArray[np.float32], kept: Bools, mass: NDArray[np.float32]) -> Bools:
    """Which of the tokens that are kept typical-p keeps: those whose surprise is nearest to the
    entropy, until they reach the row's mass.  # [rows, vocab]; mass [rows]"""
    surprise = np.where(kept, logits.max(axis=1, keepdims=True) - logits.astype(np.float64), np.inf)
    shares = np.exp(-surprise)
    total = shares.sum(axis=1, keepdims=True)
    shares /= total
    surprise += np.log(total)
    entropy = np.multiply(shares, surprise, where=kept, out=np.zeros_like(shares)).sum(axis=1)
    distance = np.abs(surprise - entropy[:, None])
    order = distance.argsort(axis=1, kind="stable")
    reached = np.take_along_axis(shares, order, axis=1).cumsum(axis=1)
    last = (reached < mass[:, None]).sum(axis=1).clip(max=kept.sum(axis=1) - 1)
    furthest = distance[np.arange(len(distance)), order[np.arange(len(order)), last]]
    found: Bools = kept & (distance <= furthest[:, None])
    return found
