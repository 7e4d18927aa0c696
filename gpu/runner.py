"""StepRunner: runs one plan at a time, start to finish, on the thread that calls it."""

import numpy as np
import torch

from ..messages import RowFailed, StepDone, StepPlan
from ..messages.arrays import NO_INTS, Ints, frozen_ints
from .attention import StepAttention, Workspace
from .inputs import make_inputs
from .kv import PagedKV
from .models.opening import Decoder
from .sampling import SamplingRows, sample
from .slots import SlotTables
from .verify import accept, sampled_positions


class StepRunner:
    """A model with its slot tables and KV memory. Knows no threads and no queue."""

    def __init__(self, model: Decoder, tables: SlotTables, kv: PagedKV) -> None:
        self._model = model
        self._tables = tables
        self.kv = kv
        self._workspace = Workspace()

    def replace_model(self, model: Decoder) -> None:
        """Run another model of the same shape from now on."""
        self._model = model

    def skip(self, plan: StepPlan) -> None:
        """Take over what a plan changes without running it."""
        self._tables.apply(plan)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepDone:
        """Apply the plan, compute its rows, and sample those that sample."""
        self._tables.apply(plan)
        if not len(plan.slots):
            return StepDone(plan.step, NO_INTS)
        inputs = make_inputs(plan, self._tables)
        attention = StepAttention(inputs, self.kv, self._workspace)
        logits = self._model.forward(inputs, attention)
        if not len(logits):
            return StepDone(plan.step, NO_INTS)
        rows, positions = sampled_positions(plan)
        slots = plan.slots[rows]
        sampled = sample(logits, SamplingRows.of(self._tables, slots, positions))
        self._tables.record(slots, positions, sampled)
        token_ids, counts = accept(plan, sampled)
        failed = _failures(plan, token_ids, counts)
        return StepDone(plan.step, frozen_ints(token_ids), failed, counts)


def _failures(plan: StepPlan, token_ids: Ints, counts: Ints | None) -> tuple[RowFailed, ...]:
    if (token_ids >= 0).all():
        return ()
    rows = np.flatnonzero(plan.samples)
    rows = (rows if counts is None else rows.repeat(counts))[token_ids < 0].tolist()
    return tuple(
        RowFailed(row, "the model's logits are not numbers (NaN or infinite)") for row in rows
    )
