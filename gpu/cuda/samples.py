"""Samples: where a plan samples, looked up once for all who ask."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...messages import Ints, Longs, StepPlan
from ..verify import sampled_positions, sampled_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Places that a step samples, in the order of its rows; a row with drafts has several."""

    rows: Longs  # in the plan
    slots: Longs
    positions: Ints  # that the samples take
    tokens: NDArray[np.integer]  # of the step, behind which they are sampled

    @classmethod
    def of(cls, plan: StepPlan, starts: Ints) -> "Samples":
        """`starts` are the first token of each row, and the end.  # [rows + 1]"""
        if plan.drafts is not None:
            rows, positions = sampled_positions(plan)
            return cls(rows, plan.slots[rows], positions, sampled_tokens(plan))
        ends, last = plan.starts + plan.lengths, starts[1:] - 1
        rows = plan.samples.nonzero()[0]
        if len(rows) == len(last):  # as in most steps
            return cls(rows, plan.slots, ends, last)
        return cls(rows, plan.slots[rows], ends[rows], last[rows])

    def __len__(self) -> int:
        return len(self.rows)
