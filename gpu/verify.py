"""Verifying drafts: what a step samples where rows carry guessed tokens, and what of it counts.

Each position is sampled by itself, with the noise of that position, as if no draft had been there.
A sample counts while everything drafted before it is what was sampled, so drafts never change what
is said, at any temperature.
"""

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..messages import Ints, Longs, StepPlan, frozen_ints
from .slots import expand_rows


def sampled_positions(plan: StepPlan) -> tuple[NDArray[np.int64], Ints]:
    """Every position that a step samples, flat: (row in the plan, position of the new token).

    A sampling row has one, and one more for each of its drafts.
    """
    rows = plan.samples.nonzero()[0]
    ends = (plan.starts + plan.lengths)[rows]
    if plan.drafts is None:
        return rows, ends
    num_drafts = plan.drafts.per_row(len(plan.slots))[rows]
    places, positions = expand_rows(ends - num_drafts, num_drafts + 1)
    return rows[places], positions


def sampled_tokens(plan: StepPlan) -> Longs:
    """The places, among the step's tokens, of those that it samples behind: the last one of each
    row that samples, and as many before it as the row has drafts."""
    rows, positions = sampled_positions(plan)
    first = plan.lengths.cumsum(dtype=np.int64) - plan.lengths
    tokens: Longs = first[rows] + positions - 1 - plan.starts[rows]
    return tokens


def accept(plan: StepPlan, token_ids: Ints) -> tuple[Ints, Ints | None]:
    """The samples that count, flat, and how many each sampling row has; no counts if each has one.

    `token_ids` are parallel to `sampled_positions`. A row that has to build on a failed sample
    (below 0) fails as a whole.
    """
    if plan.drafts is None:
        return token_ids, None
    drafts = plan.drafts
    parts = np.split(drafts.token_ids, drafts.counts.cumsum()[:-1])
    guessed = {row: part.tolist() for row, part in zip(drafts.rows.tolist(), parts, strict=True)}
    said = iter(token_ids.tolist())
    kept: list[int] = []
    counts: list[int] = []
    for row in plan.samples.nonzero()[0].tolist():
        guesses = guessed.get(row, [])
        run = _that_counts(list(islice(said, len(guesses) + 1)), guesses)
        kept += run
        counts.append(len(run))
    return frozen_ints(kept), frozen_ints(counts) if max(counts) > 1 else None


def _that_counts(said: list[int], guesses: list[int]) -> list[int]:
    """Up to the first sample that is not what was drafted, that one included."""
    right = 0
    while right < len(guesses) and said[right] == guesses[right]:
        right += 1
    run = said[: right + 1]
    return run if run[-1] >= 0 else run[-1:]
