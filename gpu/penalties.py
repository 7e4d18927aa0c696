"""Penalties: repetition of prompt and output, frequency and presence of the output.

A count takes in what the slot's row of tokens has gained since, so it follows from that row alone:
whatever was preempted, sampled ahead or taken over starts from the confirmed tokens and comes to
the same.
"""

import numpy as np
from numpy.typing import NDArray

from ..messages import Adjustments, Bools, Floats, Ints, Longs, RowState
from .row_pool import RowPool
from .slots import expand_rows


class Penalties:
    """The counts and penalties of the slots that have any."""

    def __init__(self, tokens: Ints) -> None:
        """`tokens` are the tokens by slot.  # [num_slots, positions]"""
        num_slots = len(tokens)
        self._tokens = tokens
        self._prompts = np.zeros(num_slots, dtype=np.int32)
        self._counted = np.zeros(num_slots, dtype=np.int32)  # tokens taken in, the prompt's first
        self._factors, self._each, self._once = np.zeros((3, num_slots), dtype=np.float32)
        self._counts = RowPool(num_slots, np.int32)  # of the tokens of the output
        self._in_prompt = RowPool(num_slots, np.bool_)  # only where repetition counts

    def uses(self, adjustments: Adjustments) -> bool:
        return adjustments.has_penalties

    def start(self, row: RowState, adjustments: Adjustments) -> None:
        slot = row.slot  # it is counted when it is first sampled
        self._prompts[slot] = row.num_prompt_tokens
        self._factors[slot] = adjustments.repetition_penalty
        self._each[slot] = adjustments.frequency_penalty
        self._once[slot] = adjustments.presence_penalty

    def forget(self, slot: int) -> None:
        self._counts.drop(slot)
        self._in_prompt.drop(slot)

    def apply(self, logits: Floats, at: Longs, slots: Longs, positions: Ints) -> None:
        base = self._take_in(logits.shape[1], slots, positions)
        counts: Ints = self._counts.take(slots)  # [rows, vocab]
        self._count(counts, np.arange(len(slots)), slots, base, positions)  # drafts before it
        # A sequence has said little of the vocabulary: only that is looked up and put back.
        rows, token_ids = self._known(counts, slots).nonzero()
        count = counts[rows, token_ids].astype(np.float32)
        where, of = (at[rows], token_ids), slots[rows]
        values = logits[where]
        factor = self._factors[of]
        values = np.where(values > 0, values / factor, values * factor)
        values -= self._each[of] * count
        values -= self._once[of] * (count > 0)
        logits[where] = values

    def _known(self, counts: Ints, slots: Longs) -> Bools:
        """What is penalised: what was said, and for repetition the prompt.  # [rows, vocab]"""
        is_known: Bools = counts > 0
        has_factor = (self._factors[slots] != 1).nonzero()[0]
        if len(has_factor):
            is_known[has_factor] |= self._in_prompt.take(slots[has_factor])
        return is_known

    def _take_in(self, vocab: int, slots: Longs, positions: Ints) -> Ints:
        """Count every token before the first position that each slot samples; that, by row."""
        is_first = np.ones(len(slots), dtype=np.bool_)
        is_first[1:] = slots[1:] != slots[:-1]
        own, base = slots[is_first], positions[is_first]
        for slot in own[self._counts.places(own) < 0].tolist():
            self._begin(slot, vocab)
        counted = self._counted[own]
        assert (counted <= base).all(), "a token was counted that did not stay"
        self._count(self._counts.table, self._counts.places(own), own, counted, base)
        self._counted[own] = base
        by_row: Ints = base[np.cumsum(is_first) - 1]
        return by_row

    def _begin(self, slot: int, vocab: int) -> None:
        self._counts.start(slot, vocab)
        self._counted[slot] = self._prompts[slot]
        if self._factors[slot] != 1:
            prompt = self._tokens[slot, : self._prompts[slot]]
            self._in_prompt.start(slot, vocab)[prompt] = True

    def _count(
        self, counts: NDArray[np.int32], places: Longs, slots: Longs, starts: Ints, ends: Ints
    ) -> None:
        """Count the tokens of slots from `starts` to `ends` into these rows of `counts`."""
        rows, positions = expand_rows(starts, ends - starts)
        np.add.at(counts, (places[rows], self._tokens[slots[rows], positions]), 1)
