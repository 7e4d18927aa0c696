"""A step while it is being planned: its rows, and what changed for the device."""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...messages import (
    NO_INTS,
    NO_LONGS,
    Bools,
    Copies,
    Drafts,
    Ints,
    Longs,
    RowMasks,
    RowState,
    StepPlan,
    ToldTokens,
    seal,
)
from .ledger import Ledger

T = TypeVar("T", bound=np.generic)


@dataclass(slots=True)
class Rows:
    """Rows of a step, as columns that were gathered from the ledger once."""

    slots: Longs
    epochs: Ints
    starts: Ints
    ends: Ints
    confirmed: Ints  # tokens the host knows


NO_ROWS = Rows(NO_LONGS, NO_INTS, NO_INTS, NO_INTS, NO_INTS)


@dataclass(slots=True)
class StepDraft:
    """Collects rows in planning order; nothing that was added is ever withdrawn."""

    step: int
    budget: int  # token positions that may still be added
    preempted: set[int] = field(default_factory=set)  # slots whose sequence gave way in this turn
    promised: int | None = None  # blocks that running prefills lack, while that is known
    is_crowded: bool = False  # somebody may not resume beside the worst cases of those before it
    left_out: int | None = None  # the class of who could run if there were budget left
    new_rows: list[RowState] = field(default_factory=list)
    drafts: Drafts | None = None
    masks: RowMasks | None = None
    told: ToldTokens | None = None
    _copies: list[Copies] = field(default_factory=list)
    _rows: list[Rows] = field(default_factory=list)
    _blocks: list[tuple[Longs, Ints, Ints]] = field(default_factory=list)

    def is_preempted(self, slots: Longs) -> Bools:
        """Which of these slots gave way in this turn."""
        return np.isin(slots, list(self.preempted))

    def add_rows(self, ledger: Ledger, rows: Rows, num_tokens: int) -> None:
        """Rows that compute `num_tokens` positions: the ledger's `scheduled` moves up."""
        ledger.scheduled[rows.slots] = rows.ends
        ledger.last_step[rows.slots] = self.step
        self.budget -= num_tokens
        self._rows.append(rows)

    def add_blocks(self, slots: Longs, indices: Ints, block_ids: Ints) -> None:
        """Blocks appended to the tables of rows that are not new."""
        self._blocks.append((slots, indices, block_ids))

    def append_blocks(self, slots: Longs, held: Ints, counts: Ints, block_ids: Ints) -> None:
        """Blocks behind those that each slot held, `counts` to each."""
        indices = held.repeat(counts)
        indices += np.arange(len(block_ids), dtype=np.int32)
        indices -= (counts.cumsum(dtype=np.int32) - counts).repeat(counts)
        self.add_blocks(seal(slots.repeat(counts)), seal(indices), block_ids)

    def add_drafts(self, ledger: Ledger, drafts: Drafts) -> None:
        """Rows that were added with the last token they know carry drafts, too."""
        rows = self.rows()
        assert rows is not None
        ledger.scheduled[rows.slots[drafts.rows]] += drafts.counts
        rows.ends = rows.ends + drafts.per_row(len(rows.slots))
        self.budget -= int(drafts.counts.sum())
        self.drafts = drafts

    def rows(self) -> Rows | None:
        """What was added so far, as one; None if nothing was."""
        if len(self._rows) > 1:
            self._rows = [_joined_rows(self._rows)]
        return self._rows[0] if self._rows else None

    def add_copies(self, copies: Copies | None) -> None:
        """Blocks that the step moves before its rows run."""
        if copies is not None:
            self._copies.append(copies)

    def seal(self) -> StepPlan | None:
        """The finished plan, or None when no row runs and nothing is copied."""
        rows = self.rows() or (NO_ROWS if self._copies else None)
        if rows is None:
            return None
        block_slots, block_indices, block_ids = NO_LONGS, NO_INTS, NO_INTS
        if self._blocks:
            slots, indices, ids = zip(*self._blocks, strict=True)
            block_slots, block_indices, block_ids = _joined(slots), _joined(indices), _joined(ids)
        return StepPlan(
            self.step,
            tuple(self.new_rows),
            block_slots,
            block_indices,
            block_ids,
            seal(rows.slots),
            seal(rows.epochs),
            seal(rows.starts),
            seal(rows.ends - rows.starts),
            seal(rows.ends >= rows.confirmed),
            self.drafts,
            _joined_copies(self._copies) if self._copies else None,
            self.masks,
            self.told,
        )


def _joined_copies(parts: list[Copies]) -> Copies:
    if len(parts) == 1:
        return parts[0]
    return Copies(
        _joined([copies.out_blocks for copies in parts]),
        _joined([copies.out_hosts for copies in parts]),
        _joined([copies.in_hosts for copies in parts]),
        _joined([copies.in_blocks for copies in parts]),
    )


def _joined_rows(parts: list[Rows]) -> Rows:
    return Rows(
        _joined([rows.slots for rows in parts]),
        _joined([rows.epochs for rows in parts]),
        _joined([rows.starts for rows in parts]),
        _joined([rows.ends for rows in parts]),
        _joined([rows.confirmed for rows in parts]),
    )


def _joined(columns: "list[NDArray[T]] | tuple[NDArray[T], ...]") -> NDArray[T]:
    return seal(np.concatenate(columns) if len(columns) > 1 else columns[0])
