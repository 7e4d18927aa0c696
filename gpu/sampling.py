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

_CANDIDATES = (256, 4096)  # likeliest tokens looked at before a whole row is sorted
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
    def of(cls, tables: SlotTables, slots: Longs, positions: Ints) -> "SamplingRows":
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

    May write to `logits`, which is the caller's no more.
    """
    wide = logits.float()  # numpy finds the largest of float32 many times faster than torch
    for row, banned in enumerate(rows.banned_ids):
        if banned:
            wide[row, torch.tensor(banned)] = float("-inf")
    values = wide.numpy()
    token_ids = values.argmax(axis=-1)
    best = values[np.arange(len(values)), token_ids]
    is_usable = np.isfinite(best)  # NaN and infinity win an argmax, so they show here
    is_random = is_usable & (rows.temperature > _LEAST_TEMPERATURE)
    if is_random.any():
        _draw(wide, rows, np.flatnonzero(is_random), token_ids)
    return np.where(is_usable, token_ids, -1).astype(np.int32)


def _draw(wide: Tensor, rows: SamplingRows, chosen: Longs, out: Longs) -> None:
    """Sample the chosen rows into `out`."""
    picked = wide if len(chosen) == len(wide) else wide[torch.from_numpy(chosen)]
    scaled = picked / torch.from_numpy(rows.temperature[chosen]).unsqueeze(1)  # [rows, vocab]
    cuts = _cuts(scaled, rows.top_k[chosen], rows.top_p[chosen], rows.min_p[chosen])
    key0, key1 = row_keys(rows.seed[chosen], rows.positions[chosen])
    every_id = np.arange(scaled.shape[1], dtype=np.uint32)
    values = scaled.numpy()
    for row, (target, cut) in enumerate(zip(chosen.tolist(), cuts, strict=True)):
        if cut == -np.inf:
            noisy = gumbel(noise_bits(key0[row], key1[row], every_id))
            noisy += values[row]
            out[target] = noisy.argmax()
        else:
            kept = np.flatnonzero(values[row] >= cut)
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
    """Look at the likeliest candidates first, and at more where those do not suffice."""
    cuts = np.empty(len(scaled), dtype=np.float32)
    open_rows = np.arange(len(scaled))
    for wanted in (*_CANDIDATES, scaled.shape[1]):
        count = min(wanted, scaled.shape[1])
        part = scaled if len(open_rows) == len(scaled) else scaled[torch.from_numpy(open_rows)]
        found, is_settled = _cuts_among(part, count, top_k[open_rows], top_p[open_rows])
        cuts[open_rows] = found
        open_rows = open_rows[~is_settled]
        if not len(open_rows):
            break
    return cuts


def _cuts_among(
    scaled: Tensor, count: int, top_k: Longs, top_p: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """The cuts that the likeliest `count` tokens of each row give, and where they are final."""
    is_all = count == scaled.shape[1]
    likeliest = scaled.topk(count, dim=-1).values  # [rows, count], in falling order
    rows = torch.arange(len(scaled))
    cut_k = likeliest[rows, torch.from_numpy(np.minimum(top_k, count) - 1)]
    is_kept = likeliest >= cut_k.unsqueeze(1)
    # top-p shares are of what top-k kept: some of these tokens, or the whole vocabulary.
    k_is_off = torch.from_numpy(top_k >= scaled.shape[1])
    kept_mass = likeliest.masked_fill(~is_kept, float("-inf")).logsumexp(dim=-1)
    mass = torch.where(k_is_off, scaled.logsumexp(dim=-1), kept_mass)
    share = (likeliest - mass.unsqueeze(1)).exp_().masked_fill_(~is_kept, 0.0)
    likelier = share.cumsum(dim=-1) - share
    num_kept = (is_kept & (likelier < torch.from_numpy(top_p).unsqueeze(1))).sum(dim=-1)
    num_kept.clamp_(min=1)
    cut_p = likeliest[rows, num_kept - 1]
    p_is_off = torch.from_numpy(top_p >= 1)
    cuts = torch.where(p_is_off, cut_k, cut_p)
    # The last candidate says nothing of those behind it: they may tie with it or belong too.
    k_is_inside = torch.from_numpy(top_k < count)
    is_settled = k_is_inside | (k_is_off & ~p_is_off & (num_kept < count))
    return cuts.numpy(), is_settled.numpy() | is_all
