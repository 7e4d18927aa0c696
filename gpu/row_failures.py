"""Rows of a step that could not be sampled, and what is said of them."""

import numpy as np

from ..messages import Ints, RowFailed, StepPlan

NOT_NUMBERS = -1
NONE_LEFT = -2
_NOT_NUMBERS = "the model's logits are not numbers (NaN or infinite)"
NO_TOKEN = "no token is left to sample: what the request bans or does not allow is all there is"


def row_failures(plan: StepPlan, token_ids: Ints, counts: Ints | None) -> tuple[RowFailed, ...]:
    """The failed rows of a plan whose samples these are, `counts` of each row or one."""
    if (token_ids >= 0).all():
        return ()
    rows = np.flatnonzero(plan.samples)
    rows = rows if counts is None else rows.repeat(counts)
    has_failed = token_ids < 0
    return tuple(
        RowFailed(row, NO_TOKEN if token_id == NONE_LEFT else _NOT_NUMBERS)
        for row, token_id in zip(
            rows[has_failed].tolist(), token_ids[has_failed].tolist(), strict=True
        )
    )
