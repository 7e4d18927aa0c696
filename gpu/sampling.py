"""From logits to token ids: greedy, temperature, top-k, top-p, min-p, typical-p and banned ids.

The order is temperature, top-k, top-p among what top-k kept, min-p, then typical-p among what all
these kept. Tokens that tie with the last one kept are kept too, so the result does not depend on
how a sort breaks ties.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..messages.arrays import Bools, Floats, Ints, Longs
from .draws import draw
from .noise import row_keys
from .row_failures import NONE_LEFT, NOT_NUMBERS
from .slots import SlotTables
from .typical import is_typical

_CANDIDATES = (256, 4096)  # likeliest tokens looked at before a whole row is sorted
_LEAST_TEMPERATURE = 1e-5  # below it the likeliest token wins for certain: greedy

_LEAST_LOGIT = np.finfo(np.float32).min  # what is banned is below it


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row of a batch is sampled; columns are parallel.  # all [num_rows]"""

    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    typical_p: Floats
    seed: Longs
    index: Ints
    positions: Ints  # the position that the sampled token takes
    banned_ids: tuple[tuple[int, ...], ...]  # what cannot be sampled now

    @classmethod
    def of(
        cls, tables: SlotTables, slots: Longs, positions: Ints, *, is_greedy: bool = False
    ) -> "SamplingRows":
        """Look up the sampling rows of slots that sample at these positions; `is_greedy` takes
        them all for greedy."""
        is_early = (positions < tables.min_end[slots]).tolist()
        return cls(
            temperature=tables.temperature[slots] * (not is_greedy),
            top_k=tables.top_k[slots],
            top_p=tables.top_p[slots],
            min_p=tables.min_p[slots],
            typical_p=tables.typical_p[slots],
            seed=tables.seed[slots],
            index=tables.index[slots],
            positions=positions,
            banned_ids=tuple(
                tables.banned_ids[slot] if early else ()
                for slot, early in zip(slots.tolist(), is_early, strict=True)
            ),
        )


def sample(logits: Tensor, rows: SamplingRows) -> Ints:
    """One token id per row of logits [num_rows, vocab]; NOT_NUMBERS where the logits are not
    numbers, NONE_LEFT where all of them are minus infinity.

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
    if not is_usable.all():
        token_ids[~is_usable] = NOT_NUMBERS
        token_ids[best == -np.inf] = NONE_LEFT
    is_random = is_usable & (rows.temperature > _LEAST_TEMPERATURE)
    if is_random.any():
        _draw(wide, rows, np.flatnonzero(is_random), token_ids)
    sampled: Ints = token_ids.astype(np.int32)
    return sampled


def _draw(wide: Tensor, rows: SamplingRows, chosen: Longs, out: Longs) -> None:
    """Sample the chosen rows into `out`."""
    picked = wide if len(chosen) == len(wide) else wide[torch.from_numpy(chosen)]
    scaled = picked / torch.from_numpy(rows.temperature[chosen]).unsqueeze(1)  # [rows, vocab]
    cuts = _cuts(scaled, rows.top_k[chosen], rows.top_p[chosen], rows.min_p[chosen])
    key0, key1 = row_keys(rows.seed[chosen], rows.positions[chosen], rows.index[chosen])
    typical_p = rows.typical_p[chosen]
    is_cut = (cuts > -np.inf) | (typical_p < 1)
    values = scaled.numpy()
    whole, cut = (~is_cut).nonzero()[0], is_cut.nonzero()[0]
    if len(whole):
        out[chosen[whole]] = draw(_some(values, whole), None, key0[whole], key1[whole])
    if len(cut):
        part = _some(values, cut)
        kept = _kept(part, cuts[cut], typical_p[cut])
        out[chosen[cut]] = draw(part, kept, key0[cut], key1[cut])


def _some(values: Floats, rows: Longs) -> Floats:
    return values if len(rows) == len(values) else values[rows]


def _kept(values: Floats, cuts: Floats, typical_p: Floats) -> Bools:
    """Which tokens of each row may be drawn.  # [rows, vocab]"""
    kept: Bools = values >= np.maximum(cuts, _LEAST_LOGIT)[:, None]
    has_typical = (typical_p < 1).nonzero()[0]
    if len(has_typical):
        kept[has_typical] = is_typical(
            values[has_typical], kept[has_typical], typical_p[has_typical]
        )
    return kept


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


def _cuts_among(scaled: Tensor, count: int, top_k: Longs, top_p: Floats) -> tuple[Floats, Bools]:
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
