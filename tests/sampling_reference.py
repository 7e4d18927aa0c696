"""What sampling parameters mean, written by the definitions of docs/sampling.md in float64."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepahead.messages import Adjustments

Doubles = NDArray[np.float64]


def adjusted(
    logits: NDArray[np.float32], prompt: Sequence[int], said: Sequence[int], wants: Adjustments
) -> NDArray[np.float64]:
    """One row's logits after everything that its request does to them."""
    values = logits.astype(np.float64)
    for token_id in {*prompt, *said}:
        factor = wants.repetition_penalty
        values[token_id] *= 1 / factor if values[token_id] > 0 else factor
    for token_id, count in Counter(said).items():
        values[token_id] -= wants.frequency_penalty * count + wants.presence_penalty
    for token_id, bias in wants.logit_bias.items():
        values[token_id] += bias
    if wants.allowed_token_ids is not None:
        for token_id in set(range(len(values))).difference(wants.allowed_token_ids):
            values[token_id] = -np.inf
    for *before, last in wants.bad_words:
        if len(before) <= len(said) and list(said[len(said) - len(before) :]) == before:
            values[last] = -np.inf
    size, every = wants.no_repeat_ngram_size, [*prompt, *said]
    if size and len(every) >= size:
        tail = every[len(every) - size + 1 :]
        for start in range(len(every) - size + 1):
            if every[start : start + size - 1] == tail:
                values[every[start + size - 1]] = -np.inf
    return values


def probabilities(
    logits: NDArray[np.float32] | Doubles,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> Doubles:
    """How likely each token is to be drawn from one row's logits."""
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled)
    keep = np.isfinite(scaled)
    if top_k:
        keep[order[top_k:]] = False
    shares = _shares(scaled, keep)
    likelier = np.cumsum(shares[order]) - shares[order]
    keep[order[likelier >= top_p]] = False
    keep &= np.exp(scaled - scaled.max()) >= min_p
    if typical_p < 1:
        shares = _shares(scaled, keep)
        surprise = -np.log(shares, where=keep, out=np.full_like(shares, -np.inf))
        distance = np.where(keep, np.abs(surprise - shares[keep] @ surprise[keep]), np.inf)
        nearest = np.argsort(distance)
        reached_before = np.cumsum(shares[nearest]) - shares[nearest]
        keep[nearest[reached_before >= typical_p]] = False
    return _shares(scaled, keep)


def _shares(scaled: Doubles, keep: NDArray[np.bool_]) -> Doubles:
    shares: Doubles = np.where(keep, np.exp(scaled - scaled.max()), 0.0)
    shares /= shares.sum()
    return shares
