"""Locally typical sampling on the device, for the few rows that ask for it: in torch, by a sort."""

import torch
from torch import Tensor


def keep_typical(logits: Tensor, temperature: Tensor, cuts: Tensor, mass: Tensor) -> Tensor:
    """Logits of which typical-p leaves each row those whose surprise is nearest to the entropy of
    what lies above its cut, until they reach the row's mass; the others are minus infinity.
    # float32 [rows, vocab]; temperature, cuts and mass [rows]

    As `is_typical` of `gpu/typical.py`. Rows that cannot be drawn stay as they are.
    """
    scaled = logits / temperature.unsqueeze(1)
    peaks = scaled.amax(dim=1, keepdim=True)
    least = torch.finfo(torch.float32).min
    kept = scaled >= cuts.clamp(min=least).unsqueeze(1)
    surprise = torch.where(kept, peaks - scaled.double(), torch.inf)
    shares = torch.exp(-surprise)
    total = shares.sum(dim=1, keepdim=True)
    shares /= total
    surprise += total.log()
    entropy = torch.where(kept, shares * surprise, 0.0).sum(dim=1, keepdim=True)
    distance = (surprise - entropy).abs()
    ordered, order = distance.sort(dim=1, stable=True)
    reached = shares.gather(1, order).cumsum(dim=1)
    last = (reached < mass.unsqueeze(1)).sum(dim=1, keepdim=True)
    last = torch.minimum(last, kept.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    found = kept & (distance <= ordered.gather(1, last))
    return torch.where(found | ~peaks.isfinite(), logits, -torch.inf)
