"""Telling of logits: logprobs of the rows of a step that asked for them. Numpy only, no torch.

They are raw: what the model said, before anything has changed it. Rows are worked on one after the
other, so nothing here takes more memory than a few rows of logits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..messages import (
    Floats,
    Ints,
    Logprobs,
    LogprobsWanted,
    Longs,
    RowFailed,
    StepPlan,
    frozen_ints,
    frozen_longs,
    seal,
)
from .row_failures import NOT_NUMBERS, failure_of
from .slots import SlotTables
from .verify import sampled_positions

PIECE = 2**22  # logits of a prompt that are computed at once: 16 MiB

LogitsBehind: TypeAlias = Callable[[Longs], Floats]
"""Logits behind tokens of the step, by their places in it, as float32.  # [places, vocab]"""


@dataclass(slots=True)
class Entries:
    """Collects what is told, as the columns of a message."""

    owners: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)
    token_ids: list[Ints] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    ranks: list[Ints] = field(default_factory=list)
    not_numbers: set[int] = field(default_factory=set)  # owners of logits that say nothing

    def add(
        self,
        owner: int,
        position: int,
        logits: Floats,
        token_id: int,
        top: int,
        asked: Sequence[int] = (),
    ) -> None:
        """The token at a position, which these logits were for.  # [vocab]"""
        best = likeliest(logits, top)
        token_ids = np.array([token_id, *best, *asked], dtype=np.int32)
        chosen = logits[token_ids]
        values = log_softmax_at(logits, chosen)
        ranks: Ints = np.empty(len(token_ids), dtype=np.int32)
        among = chosen[1 : 1 + len(best)]  # falling: whoever is likelier stands before
        ranks[1 : 1 + len(best)] = np.searchsorted(-among, -among) + 1
        for place in (0, *range(1 + len(best), len(token_ids))):
            ranks[place] = np.count_nonzero(logits > chosen[place]) + 1
        self.put(owner, position, len(best), token_ids, values, ranks)

    def put(
        self, owner: int, position: int, top: int, token_ids: Ints, values: Floats, ranks: Ints
    ) -> None:
        """The token at a position, the `top` likeliest and those asked for, once it is known how
        likely they are; nothing where that is no number."""
        if np.isnan(values[0]):
            self.not_numbers.add(owner)
            return
        self.owners.append(owner)
        self.positions.append(position)
        self.tops.append(top)
        self.token_ids.append(token_ids)
        self.values.append(values)
        self.ranks.append(ranks)

    @property
    def failed(self) -> tuple[RowFailed, ...]:
        """Owners of which nothing can be told, where they are rows of a plan."""
        error = failure_of(NOT_NUMBERS, None)
        return tuple(RowFailed(row, error) for row in sorted(self.not_numbers))

    def seal(self) -> Logprobs | None:
        """The finished columns; None where there is nothing to tell."""
        if not self.owners:
            return None
        return Logprobs(
            frozen_longs(self.owners),
            frozen_ints(self.positions),
            frozen_ints(self.tops),
            frozen_ints(map(len, self.token_ids)),
            seal(np.concatenate(self.token_ids)),
            seal(np.concatenate(self.values)),
            seal(np.concatenate(self.ranks)),
        )


def log_softmax_at(logits: Floats, chosen: Floats) -> Floats:
    """The log-softmax of chosen logits of a row; the row's sum is made in float64."""
    most = logits.max()
    with np.errstate(invalid="ignore", divide="ignore"):  # a row of no numbers: NaN
        total = np.log(np.exp(logits - most).sum(dtype=np.float64))
        values: Floats = ((chosen - most) - total).astype(np.float32)
    return values


def likeliest(logits: Floats, top: int) -> Longs:
    """The ids of the `top` largest logits, the largest first; of equals the smaller id."""
    if top <= 0:
        return np.zeros(0, dtype=np.int64)
    if top >= len(logits):
        return np.argsort(-logits, kind="stable")
    edge = np.partition(logits, -top)[-top]
    ids = np.flatnonzero(logits >= edge)
    best: Longs = ids[np.argsort(-logits[ids], kind="stable")[:top]]
    return best


class AskedRows:
    """Which tokens of a step are told of: those that its rows sample, and those of prompts."""

    def __init__(self, plan: StepPlan, wanted: Mapping[int, LogprobsWanted]) -> None:
        """`wanted` tells what slots asked for; some of them are in the plan."""
        self._plan = plan
        self.wanted = {
            row: wanted[slot] for row, slot in enumerate(plan.slots.tolist()) if slot in wanted
        }
        """By row of the plan."""
        self.rows, self.positions = sampled_positions(plan)
        is_told = [row in self.wanted and self.wanted[row].top >= 0 for row in self.rows.tolist()]
        self.places: Longs = np.flatnonzero(is_told)
        """Which of the places that the step samples are told of."""

    @classmethod
    def of(cls, plan: StepPlan, wanted: Mapping[int, LogprobsWanted]) -> "AskedRows | None":
        """None where no row of the plan asked for anything."""
        if not wanted or wanted.keys().isdisjoint(plan.slots.tolist()):
            return None
        return cls(plan, wanted)

    def samples(self, token_ids: Ints, counts: Ints | None) -> dict[int, int]:
        """The sampled token at each place whose sample counts, as in StepDone."""
        rows = self.rows
        within = np.arange(len(rows)) - np.searchsorted(rows, rows)
        kept = within == 0
        if counts is not None:
            _, number = np.unique(rows, return_inverse=True)
            kept = within < counts[number]
        return dict(zip(np.flatnonzero(kept).tolist(), token_ids.tolist(), strict=True))

    def prompt(self, row: int) -> tuple[range, int]:
        """The positions of a row's prompt that this step can tell of, and where the token at
        position 0 would stand in the step: logits for a token are behind the one before it."""
        plan, wanted = self._plan, self.wanted[row]
        start, length = int(plan.starts[row]), int(plan.lengths[row])
        first = max(start + 1, wanted.prompt_start)
        end = min(start + length + 1, wanted.prompt_end)
        return range(first, max(first, end)), int(plan.lengths[:row].sum()) - start


class StepLogprobs:
    """What the rows of one step asked for, from the plan to its result."""

    def __init__(self, asked: AskedRows, plan: StepPlan, tables: SlotTables) -> None:
        self._asked = asked
        self._plan = plan
        self._tables = tables
        self.places = asked.places
        """Which of the places that the step samples are told of."""
        self.failed: tuple[RowFailed, ...] = ()
        """The rows of which nothing can be told; known once the step was told of."""

    @classmethod
    def of(cls, plan: StepPlan, tables: SlotTables) -> "StepLogprobs | None":
        """None where no row of the plan asked for anything."""
        asked = AskedRows.of(plan, tables.logprobs)
        return None if asked is None else cls(asked, plan, tables)

    def tell(
        self, raw: Floats, token_ids: Ints, counts: Ints | None, behind: LogitsBehind
    ) -> Logprobs | None:
        """What the step tells; `raw` are the logits of `places` as the model gave them, `token_ids`
        and `counts` the samples that count, as in StepDone.  # raw [places, vocab]"""
        asked, entries = self._asked, Entries()
        samples = asked.samples(token_ids, counts)
        sampled = {place: row for row, place in enumerate(self.places.tolist())}
        places_of: dict[int, list[int]] = {}
        for place in sampled:
            places_of.setdefault(int(asked.rows[place]), []).append(place)
        for row, wanted in asked.wanted.items():
            self._tell_prompt(entries, row, wanted, behind)
            for place in places_of.get(row, ()):
                if (token_id := samples.get(place, -1)) >= 0:
                    logits, position = raw[sampled[place]], int(asked.positions[place])
                    entries.add(row, position, logits, token_id, wanted.top, wanted.token_ids)
        self.failed = entries.failed
        return entries.seal()

    def _tell_prompt(
        self, entries: Entries, row: int, wanted: LogprobsWanted, behind: LogitsBehind
    ) -> None:
        """Of the prompt's tokens behind the positions that the row computes, in pieces."""
        told, in_step = self._asked.prompt(row)
        known = self._tables.tokens[self._plan.slots[row]]
        for positions, logits in _pieces(told.start, told.stop, in_step, behind):
            for position, own in zip(positions, logits, strict=True):
                entries.add(row, position, own, int(known[position]), wanted.prompt_top)


def _pieces(
    first: int, end: int, in_step: int, behind: LogitsBehind
) -> Iterator[tuple[range, NDArray[np.float32]]]:
    """Positions and the logits that were for them, no more at once than a piece holds."""
    size = 1  # until it is known how wide a row is
    while first < end:
        positions = range(first, min(first + size, end))
        logits = behind(np.arange(positions.start, positions.stop, dtype=np.int64) + (in_step - 1))
        yield positions, logits
        first, size = positions.stop, max(PIECE // logits.shape[1], 1)
