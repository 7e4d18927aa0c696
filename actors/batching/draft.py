"""A step while it is being planned: its rows, and what changed for the device."""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...messages import NO_BOOLS, NO_INTS, Bools, Ints, RowState, StepPlan, seal
from .ledger import Ledger

T = TypeVar("T", bound=np.generic)


@dataclass(slots=True)
class StepDraft:
    """Collects rows in planning order; nothing that was added is ever withdrawn."""

    step: int
    budget: int  # token positions that may still be added
    has_preempted: bool = False
    new_rows: list[RowState] = field(default_factory=list)
    _slots: list[Ints] = field(default_factory=list)
    _starts: list[Ints] = field(default_factory=list)
    _lengths: list[Ints] = field(default_factory=list)
    _samples: list[Bools] = field(default_factory=list)
    _blocks: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)

    def add_rows(self, ledger: Ledger, slots: Ints, lengths: Ints) -> None:
        """Rows that compute `lengths` more positions: the ledger's `scheduled` moves up."""
        starts = ledger.scheduled[slots]
        reach = starts + lengths
        ledger.scheduled[slots] = reach
        ledger.last_step[slots] = self.step
        self.budget -= int(lengths.sum())
        self._slots.append(slots)
        self._starts.append(starts)
        self._lengths.append(lengths)
        self._samples.append(reach >= ledger.confirmed[slots])

    def add_blocks(self, slots: Ints, indices: Ints, block_ids: Ints) -> None:
        """Blocks appended to the tables of rows that are not new."""
        self._blocks.append((slots, indices, block_ids))

    def seal(self, ledger: Ledger) -> StepPlan | None:
        """The finished plan, or None when no row runs."""
        if not self._slots:
            return None
        slots = _joined(self._slots, NO_INTS)
        epochs = ledger.epoch[slots]
        seal(epochs)
        tables = zip(*self._blocks, strict=True) if self._blocks else ((), (), ())
        block_slots, block_indices, block_ids = (_joined(list(c), NO_INTS) for c in tables)
        return StepPlan(
            self.step,
            tuple(self.new_rows),
            block_slots,
            block_indices,
            block_ids,
            slots,
            epochs,
            _joined(self._starts, NO_INTS),
            _joined(self._lengths, NO_INTS),
            _joined(self._samples, NO_BOOLS),
        )


def _joined(columns: list[NDArray[T]], empty: NDArray[T]) -> NDArray[T]:
    if not columns:
        return empty
    joined = np.concatenate(columns) if len(columns) > 1 else columns[0]
    seal(joined)
    return joined
