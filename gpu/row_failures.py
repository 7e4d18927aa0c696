"""Rows of a step that could not be sampled, and what is said of them."""

from collections.abc import Mapping

import numpy as np

from ..messages import Ints, RowFailed, StepPlan

NOT_NUMBERS = -1
NONE_LEFT = -2
_NOT_NUMBERS = "the model's logits are not numbers (NaN or infinite)"
_NONE_LEFT = "no token is left to sample: what the request bans or does not allow is all there is"


def has_failures(token_ids: Ints) -> bool:
    """Whether there is a row without a sample among these."""
    # Behind a forward pass nothing is cached, and this runs through less code than a comparison.
    return len(token_ids) > 0 and token_ids.item(token_ids.argmin()) < 0


def row_failures(
    plan: StepPlan, token_ids: Ints, counts: Ints | None, faults: Mapping[int, str]
) -> tuple[RowFailed, ...]:
    """The failed rows of a plan whose samples these are, `counts` of each row or one; `faults` tell
    more of some slots."""
    if not has_failures(token_ids):
        return ()
    rows = np.flatnonzero(plan.samples)
    rows = rows if counts is None else rows.repeat(counts)
    has_failed = token_ids < 0
    return tuple(
        RowFailed(row, failure_of(token_id, faults.get(int(plan.slots[row]))))
        for row, token_id in zip(
            rows[has_failed].tolist(), token_ids[has_failed].tolist(), strict=True
        )
    )


def failure_of(token_id: int, fault: str | None) -> str:
    """Why a row has no sample, by what stands in its place and what else is known of its slot."""
    if token_id == NONE_LEFT:
        return _NONE_LEFT
    return fault or _NOT_NUMBERS
