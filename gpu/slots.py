"""SlotTables: what a device remembers of every slot between steps. Numpy only, no torch."""

import numpy as np
from numpy.typing import NDArray

from ..messages import LogprobsWanted, RowState, StepPlan
from ..messages.arrays import Ints, Longs
from .row_failures import has_failures

INT32_MAX = 2**31 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)  # hotter than that makes no difference


class SlotTables:
    """Tokens, block tables and sampling rows by slot, changed only by what a plan brings.

    The token at a position below what a row state brought comes from that state; above it, from
    what the device sampled itself and recorded with `record`.
    """

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        # One column more than the context: the last position may still sample a token.
        self.tokens: Ints = np.zeros((num_slots, max_model_len + 1), dtype=np.int32)
        self.block_table: Ints = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self.epochs: Ints = np.full(num_slots, -1, dtype=np.int32)
        self.temperature = np.zeros(num_slots, dtype=np.float32)
        self.top_k: Ints = np.zeros(num_slots, dtype=np.int32)  # 0: off
        self.top_p = np.ones(num_slots, dtype=np.float32)
        self.min_p = np.zeros(num_slots, dtype=np.float32)
        self.typical_p = np.ones(num_slots, dtype=np.float32)
        self.seed: Longs = np.zeros(num_slots, dtype=np.int64)
        self.index: Ints = np.zeros(num_slots, dtype=np.int32)
        self.min_end: Ints = np.zeros(num_slots, dtype=np.int32)
        self.banned_ids: list[tuple[int, ...]] = [()] * num_slots
        self.logprobs: dict[int, LogprobsWanted] = {}  # of the slots that asked
        self.not_greedy: set[int] = set()  # that draw, or begin where something is banned

    def apply(self, plan: StepPlan) -> None:
        """Take over the plan's new row states, its appended blocks, what it tells, its drafts."""
        for row in plan.new_rows:
            self._replace(row)
        if len(plan.block_ids):
            self.block_table[plan.block_slots, plan.block_indices] = plan.block_ids
        if plan.told is not None:
            rows, positions = expand_rows(plan.told.starts, plan.told.counts)
            self.tokens[plan.told.slots[rows], positions] = plan.told.token_ids
        if plan.drafts is not None:
            rows, positions = expand_rows(plan.starts[plan.drafts.rows] + 1, plan.drafts.counts)
            self.tokens[plan.slots[plan.drafts.rows][rows], positions] = plan.drafts.token_ids

    def _replace(self, row: RowState) -> None:
        slot = row.slot
        self.epochs[slot] = row.epoch
        self.tokens[slot, : len(row.token_ids)] = row.token_ids
        self.block_table[slot, : len(row.block_ids)] = row.block_ids
        self.temperature[slot] = min(row.temperature, FLOAT32_MAX)
        self.top_k[slot] = min(row.top_k, INT32_MAX)
        self.top_p[slot] = row.top_p
        self.min_p[slot] = row.min_p
        self.typical_p[slot] = row.typical_p
        self.seed[slot] = row.seed
        self.index[slot] = row.index
        self.min_end[slot] = row.min_end if row.banned_ids else 0
        self.banned_ids[slot] = row.banned_ids
        has_bans = len(row.token_ids) < row.min_end and bool(row.banned_ids)
        self.not_greedy.discard(slot)
        if row.temperature > 0 or has_bans:
            self.not_greedy.add(slot)
        self.logprobs.pop(slot, None)
        if row.logprobs is not None:
            self.logprobs[slot] = row.logprobs

    def places_of(self, slots: Longs, positions: Ints) -> Longs:
        """Where the token of each (slot, position) stands among all tokens."""
        places: Longs = slots * self.tokens.shape[1] + positions
        return places

    def record(self, places: Longs, token_ids: Ints) -> None:
        """Remember the tokens that a step sampled; a failed row (-1) leaves token 0 behind."""
        self.tokens.put(places, np.maximum(token_ids, 0) if has_failures(token_ids) else token_ids)

    def blocks_of(self, slots: Longs, positions: Ints) -> Ints:
        """The block that holds each (slot, position)."""
        blocks: Ints = self.block_table[slots, positions // self.block_size]
        return blocks


def expand_rows(starts: Ints, lengths: Ints) -> tuple[NDArray[np.int64], Ints]:
    """Every position of every row, flat: (row of each token, position of each token)."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    first = np.cumsum(lengths) - lengths  # where each row begins in the flat arrays
    positions = np.arange(len(rows), dtype=np.int32) + np.repeat(starts - first, lengths)
    return rows, positions.astype(np.int32, copy=False)
