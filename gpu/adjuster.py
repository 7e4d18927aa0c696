"""Adjuster: what requests do to their logits before anything is cut off or drawn.

The order is penalties, biases, the program's own processors, then bans, so that nothing undoes a
ban. Rows that use none of it are not touched, and a batch without any such row costs one look.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..messages import Adjustments, Bools, Floats, Ints, Longs, RowState
from .logits_processors import LogitsProcessors
from .penalties import Penalties
from .token_bans import AllowedIds, BadWords, BansOfTokens, Biases, NoRepeatedNgrams

if TYPE_CHECKING:
    from .custom_logits import CustomLogits


class Adjustment(Protocol):
    """One way to change logits, for the slots that use it. What it keeps follows from a slot's
    state and its tokens."""

    def uses(self, adjustments: Adjustments) -> bool: ...

    def start(self, row: RowState, adjustments: Adjustments) -> None:
        """A slot that uses it begins an epoch."""
        ...

    def forget(self, slot: int) -> None:
        """A slot does not use it any more; a no-op where it never did."""
        ...

    def apply(self, logits: Floats, at: Longs, slots: Longs, positions: Ints) -> None:
        """Change rows `at` of float32 logits [rows, vocab] in place.

        Row at[i] samples positions[i] of slots[i]; the rows of a slot stand together, in order.
        """
        ...


class Adjuster:
    """Every adjustment, and which slots use it."""

    def __init__(self, tokens: Ints, processors: LogitsProcessors | None = None) -> None:
        """`tokens` are the tokens by slot, kept up to date by their owner.
        # [num_slots, positions]"""
        num_slots = len(tokens)
        self._custom = _custom_logits(tokens, processors)
        self._steps: tuple[Adjustment, ...] = (
            Penalties(tokens),
            Biases(num_slots),
            *((self._custom,) if self._custom else ()),
            AllowedIds(num_slots),
            BansOfTokens(BadWords(num_slots), tokens),
            BansOfTokens(NoRepeatedNgrams(num_slots), tokens),
        )
        self._is_on: tuple[Bools, ...] = tuple(
            np.zeros(num_slots, dtype=np.bool_) for _ in self._steps
        )
        self.slots: set[int] = set()  # that use any

    def apply(self, new_rows: Iterable[RowState]) -> None:
        """Slots begin an epoch."""
        for row in new_rows:
            if row.slot in self.slots:
                self._forget(row.slot)
            if row.adjustments is not None:
                self._start(row, row.adjustments)

    def _start(self, row: RowState, adjustments: Adjustments) -> None:
        self.slots.add(row.slot)
        for step, is_on in zip(self._steps, self._is_on, strict=True):
            if step.uses(adjustments):
                is_on[row.slot] = True
                step.start(row, adjustments)

    def _forget(self, slot: int) -> None:
        self.slots.discard(slot)
        for step, is_on in zip(self._steps, self._is_on, strict=True):
            is_on[slot] = False
            step.forget(slot)

    def adjust(self, logits: Floats, slots: Longs, positions: Ints) -> None:
        """Change float32 logits [rows, vocab] in place; each row samples a position of a slot."""
        if not self.slots:
            return
        if self._custom:
            self._custom.faults.clear()
        for step, is_on in zip(self._steps, self._is_on, strict=True):
            at = is_on[slots].nonzero()[0]
            if len(at):
                step.apply(logits, at, slots[at], positions[at])

    @property
    def faults(self) -> Mapping[int, str]:
        """Why slots could not be adjusted in the last step; their logits are not numbers now."""
        return self._custom.faults if self._custom else {}


def _custom_logits(tokens: Ints, processors: LogitsProcessors | None) -> "CustomLogits | None":
    """None where the program brings none: only these are torch's."""
    if not processors:
        return None
    import torch

    from .custom_logits import CustomLogits
    from .uploads import on_host

    return CustomLogits(torch.from_numpy(tokens), processors, on_host)
