"""Logprobs on their way from the device: what of a result counts.

A token's logprobs count where the token does. Those of a prompt count once, in order: whoever was
preempted in the middle of a prompt is told of the rest.
"""

from collections.abc import Sequence as Many

import numpy as np

from ...messages import Ints, Logprobs, Longs, StepPlan, seal
from .ledger import Ledger


def that_count(
    ledger: Ledger, plan: StepPlan, told: Logprobs, slots: Longs, lengths: Ints
) -> Logprobs | None:
    """What a step told of tokens that count, by serial; `slots` and `lengths` are those of the
    samples that were confirmed."""
    own, width = plan.slots[told.owners], ledger.tokens.shape[1] + 1
    sampled = slots * width + (lengths - 1)
    counts = np.isin(own * width + told.positions, sampled)
    is_valid = plan.epochs[told.owners] >= ledger.valid_from[own]
    for slot in np.unique(own[is_valid & ~counts]).tolist():
        sequence = ledger.sequences[slot]
        assert sequence is not None, "a valid row of nobody's"
        is_next = is_valid & (own == slot) & (told.positions >= sequence.prompt_told)
        is_next &= told.positions < len(sequence.request.prompt)
        number = int(np.count_nonzero(is_next))
        if number:
            assert told.positions[is_next][0] == sequence.prompt_told, "a gap in what is told"
            sequence.prompt_told += number
            counts |= is_next
    if not np.count_nonzero(counts):
        return None
    flat = counts.repeat(told.counts)
    return Logprobs(
        seal(ledger.serial[own[counts]]),
        seal(told.positions[counts]),
        seal(told.tops[counts]),
        seal(told.counts[counts]),
        seal(told.token_ids[flat]),
        seal(told.values[flat]),
        seal(told.ranks[flat]),
    )


def joined(parts: Many[Logprobs]) -> Logprobs | None:
    """Several messages' worth as one; None where there is none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return Logprobs(
        seal(np.concatenate([part.owners for part in parts])),
        seal(np.concatenate([part.positions for part in parts])),
        seal(np.concatenate([part.tops for part in parts])),
        seal(np.concatenate([part.counts for part in parts])),
        seal(np.concatenate([part.token_ids for part in parts])),
        seal(np.concatenate([part.values for part in parts])),
        seal(np.concatenate([part.ranks for part in parts])),
    )
