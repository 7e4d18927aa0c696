"""From logits to token ids: greedy, temperature, top-k, top-p, min-p, typical-p and banned ids.

The order is temperature, top-k, top-p among what top-k kept, min-p, then typical-p among what all
these kept. Tokens that tie with the last one kept are kept too, so the result does not depend on
how a sort breaks ties.
"""

from dataclasses import dataclass

import numpy as np

from ..messages.arrays import Bools, Floats, Ints, Longs
from .cuts import cuts_of
from .draws import draw, draw_among
from .noise import row_keys
from .row_failures import NONE_LEFT, NOT_NUMBERS
from .slots import SlotTables
from .typical import is_typical

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

    @property
    def are_uncut(self) -> Bools:
        """Which rows draw from all that their logits leave possible.  # [num_rows]"""
        uncut: Bools = (self.top_k == 0) & (self.top_p >= 1) & (self.min_p == 0)
        return uncut & (self.typical_p >= 1)


def are_greedy(tables: SlotTables, slots: Longs, positions: Ints) -> bool:
    """Whether nothing but the likeliest token counts, of slots that sample at these positions."""
    if tables.not_greedy.isdisjoint(slots.tolist()):  # in plain steps caches are cold: no numpy
        return True
    hottest = np.maximum.reduce(tables.temperature[slots], initial=0)
    has_bans = np.logical_or.reduce(positions < tables.min_end[slots])
    return bool(hottest <= _LEAST_TEMPERATURE and not has_bans)


def usable(token_ids: Ints, best: Floats) -> Ints:
    """The likeliest token of each row whose logit `best` is a number; else NOT_NUMBERS, or
    NONE_LEFT where all logits are minus infinity.  # all [num_rows]"""
    faults = np.where(best == -np.inf, NONE_LEFT, NOT_NUMBERS)
    # NaN and infinity win an argmax, so they show here.
    return np.where(np.isfinite(best), token_ids, faults).astype(np.int32)


def sample(logits: Floats, rows: SamplingRows, is_narrow: Bools | None = None) -> Ints:
    """One token id per row of float32 logits [num_rows, vocab]; NOT_NUMBERS where they are not
    numbers, NONE_LEFT where all of them are minus infinity.

    `is_narrow` tells the rows of which at least half is minus infinity: noise is made for the rest
    alone, and the same tokens are drawn in less time. May write to `logits`, which is the caller's
    no more.
    """
    for row, banned in enumerate(rows.banned_ids):
        if banned:
            logits[row, list(banned)] = -np.inf
    likeliest = logits.argmax(axis=-1)
    best = logits[np.arange(len(logits)), likeliest]
    token_ids = usable(likeliest.astype(np.int32), best)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        has_room = np.isfinite(best / rows.temperature)  # else huge logits would be infinite
    is_random = (token_ids >= 0) & has_room & (rows.temperature > _LEAST_TEMPERATURE)
    if is_narrow is not None:
        is_few = is_random & is_narrow & rows.are_uncut
        _draw_few(logits, rows, np.flatnonzero(is_few), token_ids)
        is_random &= ~is_few
    if is_random.any():
        _draw(logits, rows, np.flatnonzero(is_random), token_ids)
    return token_ids


def _draw_few(values: Floats, rows: SamplingRows, chosen: Longs, out: Ints) -> None:
    """Sample the chosen rows into `out`, of which masks leave little and nothing else is cut."""
    key0, key1 = row_keys(rows.seed[chosen], rows.positions[chosen], rows.index[chosen])
    for place, row in enumerate(chosen.tolist()):
        ids = (values[row] > -np.inf).nonzero()[0]
        with np.errstate(over="ignore"):
            scaled = values[row, ids] / rows.temperature[row]
        out[row] = draw_among(scaled, ids, key0[place], key1[place])


def _draw(values: Floats, rows: SamplingRows, chosen: Longs, out: Ints) -> None:
    """Sample the chosen rows into `out`."""
    picked = _some(values, chosen)
    with np.errstate(over="ignore"):  # downwards, for the largest has room
        scaled = picked / rows.temperature[chosen][:, None]  # [rows, vocab]
    cuts = cuts_of(scaled, rows.top_k[chosen], rows.top_p[chosen], rows.min_p[chosen])
    key0, key1 = row_keys(rows.seed[chosen], rows.positions[chosen], rows.index[chosen])
    typical_p = rows.typical_p[chosen]
    is_cut = (cuts > -np.inf) | (typical_p < 1)
    whole, cut = (~is_cut).nonzero()[0], is_cut.nonzero()[0]
    if len(whole):
        out[chosen[whole]] = draw(_some(scaled, whole), None, key0[whole], key1[whole])
    if len(cut):
        part = _some(scaled, cut)
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
