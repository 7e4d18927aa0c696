"""Sampling from an oracle with the sampler of real devices.

A request that adjusts its logits is served by the same code as on a real device. The likeliest
token is what the oracle says.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..messages import Bools, Ints, Longs, RowState
from .adjuster import Adjuster
from .logits_processors import LogitsProcessors
from .oracle import Oracle
from .sampling import SamplingRows, sample
from .slots import SlotTables


class OracleSampler:
    """Samples the slots that adjust their logits; with `draws` all, at their temperature."""

    def __init__(
        self,
        tables: SlotTables,
        vocab_size: int,
        *,
        draws: bool,
        processors: LogitsProcessors | None = None,
    ) -> None:
        self._tables = tables
        self._vocab_size = vocab_size
        self._draws = draws
        self._adjuster = Adjuster(tables.tokens, processors)

    @property
    def faults(self) -> Mapping[int, str]:
        """What is known of slots that have no sample in this step."""
        return self._adjuster.faults

    def apply(self, new_rows: Iterable[RowState]) -> None:
        self._adjuster.apply(new_rows)

    def sample(
        self,
        oracle: Oracle,
        slots: Longs,
        positions: Ints,
        prefixes: Sequence[int | None],
        allowed: Sequence[Bools | None],
        sampled: list[int],
    ) -> None:
        """Sample these positions of these slots into `sampled`, where the slot is one of ours and
        its prefix, by its hash, is known."""
        own = self._adjuster.slots
        known = [
            (row, prefix)
            for row, (slot, prefix) in enumerate(zip(slots.tolist(), prefixes, strict=True))
            if prefix is not None and (self._draws or slot in own)
        ]
        if not known:
            return
        chosen = [row for row, _ in known]
        logits = np.stack([oracle.logits(prefix, self._vocab_size) for _, prefix in known])
        at, places = slots[chosen], positions[chosen]
        self._adjuster.adjust(logits, at, places)
        for line, row in zip(logits, chosen, strict=True):
            if (mask := allowed[row]) is not None:
                line[~mask] = -np.inf
        rows = SamplingRows.of(self._tables, at, places, is_greedy=not self._draws)
        drawn = sample(logits, rows)
        for row, token_id in zip(chosen, drawn.tolist(), strict=True):
            sampled[row] = token_id
