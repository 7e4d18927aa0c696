"""From logits to token ids: greedy, temperature, top-k, top-p, min-p and banned ids.

The order is temperature, top-k, top-p among what top-k kept, then min-p. Tokens that tie with the
last one kept are kept too, so the result does not depend on how a sort breaks ties.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..messages.arrays import Ints, Longs
from .noise import gumbel, noise_bits, row_keys
from .slots import SlotTables

_CANDIDATES = 256  # likeliest tokens looked at before a whole row is sorted
_LEAST_TEMPERATURE = 1e-5  # below it the likeliest token wins for certain: greedy

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row of a batch is sampled; columns are parallel.  # all [num_rows]"""

    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    seed: Longs
    positions: Ints  # the position that the sampled token takes
    banned_ids: tuple[tuple[int, ...], ...]  # what cannot be sampled now

    @classmethod
    def of(cls, tables: SlotTables, slots: Ints, positions: Ints) -> "SamplingRows":
        """Look up the sampling rows of slots that sample at these positions."""
        is_early = (positions < tables.min_end[slots]).tolist()
        return cls(
            temperature=tables.temperature[slots],
            top_k=tables.top_k[slots],
            top_p=tables.top_p[slots],
            min_p=tables.min_p[slots],
            seed=tables.seed[slots],
            positions=positions,
            banned_ids=tuple(
                tables.banned_ids[slot] if early else ()
                for slot, early in zip(slots.tolist(), is_early, strict=True)
            ),
        )


def sample(logits: Tensor, rows: SamplingRows) -> Ints:
    """One token id per row of logits [num_rows, vocab]; -1 where the logits are not numbers.

    May write to `logits`.
    """
    for row, banned in enumerate(rows.banned_ids):
        if banned:
            logits[row, torch.tensor(banned)] = float("-inf")
    best, greedy_ids = logits.max(dim=-1)  # NaN wins a maximum, so it shows here
    is_usable = np.isfinite(best.float().numpy())
    token_ids = greedy_ids.numpy().astype(np.int32)
    token_ids[~is_usable] = -1
    is_random = is_usable & (rows.temperature > _LEAST_TEMPERATURE)
    if is_random.any():
        _draw(logits, rows, np.flatnonzero(is_random), token_ids)
    return token_ids


def _draw(logits: Tensor, rows: SamplingRows, chosen: NDArray[np.int64], out: Ints) -> None:
    """Sample the chosen rows into `out`."""
    picked = logits if len(chosen) == len(logits) else logits[torch.from_numpy(chosen)]
    temperature = torch.from_numpy(rows.temperature[chosen]).unsqueeze(1)
    scaled = picked.float() / temperature  # [rows, vocab]
    cuts = _cuts(scaled, rows.top_k[chosen], rows.top_p[chosen], rows.min_p[chosen])
    key0, key1 = row_keys(rows.seed[chosen], rows.positions[chosen])
    every_id = np.arange(scaled.shape[1], dtype=np.uint32)
    values = scaled.numpy()
    for row, (target, cut) in enumerate(zip(chosen.tolist(), cuts.tolist(), strict=True)):
        if cut == -np.inf:
            noisy = gumbel(noise_bits(key0[row], key1[row], every_id))
            noisy += values[row]
            out[target] = noisy.argmax()
        else:
            kept = np.flatnonzero(values[row] >= np.float32(cut))
            noisy = gumbel(noise_bits(key0[row], key1[row], kept.astype(np.uint32)))
            noisy += values[row, kept]
            out[target] = kept[noisy.argmax()]


def _cuts(scaled: Tensor, top_k: Ints, top_p: Floats, min_p: Floats) -> Floats:
    """The least scaled logit that each row may sample; minus infinity where all may be."""
    cuts = np.full(len(scaled), -np.inf, dtype=np.float32)
    vocab = scaled.shape[1]
    has_top = ((top_k > 0) & (top_k < vocab)) | (top_p < 1)
    if has_top.any():
        wanted = np.flatnonzero(has_top)
        part = scaled[torch.from_numpy(wanted)]
        k = np.where((top_k > 0) & (top_k < vocab), top_k, vocab)[wanted]
        cuts[wanted] = _top_cuts(part, k.astype(np.int64), top_p[wanted])
    has_min_p = min_p > 0
    if has_min_p.any():
        best = scaled.amax(dim=-1).numpy()
        log_share = np.log(min_p, where=has_min_p, out=np.full_like(min_p, -np.inf))
        cuts = np.maximum(cuts, best + log_share)
    return cuts


def _top_cuts(scaled: Tensor, top_k: Longs, top_p: Floats) -> Floats:
    """Look at the likeliest candidates only, and at whole rows where those do not suffice."""
    num_candidates = min(_CANDIDATES, scaled.shape[1])
    cuts, is_settled = _cuts_among(scaled, num_candidates, top_k, top_p)
    if not is_settled.all():
        rest = np.flatnonzero(~is_settled)
        whole = scaled[torch.from_numpy(rest)]
        cuts[rest], _ = _cuts_among(whole, whole.shape[1], top_k[rest], top_p[rest])
    return cuts


def _cuts_among(
    scaled: Tensor, num_candidates: int, top_k: Longs, top_p: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """The cuts that the likeliest `num_candidates` tokens give, and where that is the answer."""
    everything = num_candidates == scaled.shape[1]
    if everything:
        values = scaled.sort(dim=-1, descending=True).values
    else:
        values = scaled.topk(num_candidates, dim=-1).values
    rows = torch.arange(len(scaled))
    k = torch.from_numpy(np.minimum(top_k, num_candidates))
    cut_k = values[rows, k - 1]  # tokens of at least this are what top-k keeps
    is_kept = values >= cut_k.unsqueeze(1)
    k_settled = torch.from_numpy(top_k < num_candidates)
    # top-p shares are of what top-k kept: of the candidates if it ends among them, else of all.
    total_kept = torch.where(is_kept, values, float("-inf")).logsumexp(dim=-1)
    total = torch.where(k_settled, total_kept, scaled.logsumexp(dim=-1))
    share = (values - total.unsqueeze(1)).exp().masked_fill_(~is_kept, 0.0)
    before = share.cumsum(dim=-1) - share  # probability of all likelier tokens
    p = torch.from_numpy(top_p).unsqueeze(1)
    count = ((before < p) & is_kept).sum(dim=-1).clamp_(min=1)
    cut_p = values[rows, count - 1]
    p_off = torch.from_numpy(top_p >= 1)
    cuts = torch.where(p_off, cut_k, cut_p)
    settled = torch.where(
        p_off, k_settled, (count < num_candidates) & (k_settled | (k == num_candidates))
    )
    is_settled = settled.numpy() | everything
    # Between the candidates and the whole vocabulary, top-k cannot be combined with top-p exactly.
    too_wide = (top_k > num_candidates) & (top_k < scaled.shape[1])
    return cuts.numpy().copy(), is_settled & (~too_wide | everything)
