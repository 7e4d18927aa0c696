"""Running sequences: how far each advances in a step, and the blocks that takes."""

import numpy as np

from ...messages import Ints, Longs, seal
from .chunks import fair_chunks
from .draft import Rows, StepDraft
from .giving_way import GivingWay
from .ledger import ONE
from .making import PrefixesInMaking
from .parts import Parts
from .shares import beside_newcomers, fair_shares
from .speculation import Speculation

SOON = 4  # positions in which a row will need its next block


class RunningRows:
    """Rows for running sequences, in vector operations over all of them."""

    def __init__(
        self,
        parts: Parts,
        giving_way: GivingWay,
        making: PrefixesInMaking,
        speculation: Speculation | None,
    ) -> None:
        self._limits = parts.limits
        self._ledger = parts.ledger
        self._roster = parts.roster
        self._blocks = parts.blocks
        self._publisher = parts.publisher
        self._structured = parts.structured
        self._steps = parts.steps
        self._giving_way = giving_way
        self._making = making
        self._speculation = speculation
        self.left_out: int | None = None  # the class that had no budget left in the last step

    def advance(self, draft: StepDraft, order: Longs, classes: Longs, start: int, end: int) -> None:
        """Rows for the running sequences at places [start, end) of the order."""
        ledger = self._ledger
        if start >= end or draft.budget <= 0:
            return
        slots = order[start:end]
        rows = ledger.gather(slots)
        starts, confirmed, covered, _, epochs = rows
        ends, num_tokens = self._reach(draft, slots, rows, int(classes[start]))
        if np.count_nonzero(ends > covered):
            self._grow(draft, order, start, rows, ends)
            granted = np.minimum(ends, ledger.covered[slots])
            if draft.preempted:
                granted[draft.is_preempted(slots)] = 0
            if np.count_nonzero(granted < ends):
                ends = granted
                num_tokens = int(np.add.reduce(ends - starts, where=ends > starts))
        runs = ends > starts
        if np.count_nonzero(runs) < len(runs):
            slots, epochs, starts, ends = slots[runs], epochs[runs], starts[runs], ends[runs]
            confirmed = confirmed[runs]
        if num_tokens:
            self.add_rows(draft, Rows(slots, epochs, starts, ends, confirmed), num_tokens)

    def _reach(
        self, draft: StepDraft, slots: Longs, rows: Ints, most_important: int
    ) -> tuple[Ints, int]:
        """How far each row would advance, blocks aside, and how many positions that is in all."""
        starts, confirmed, _, limits, _ = rows
        following: Ints = starts + ONE
        # Enough is on its way: confirmed tokens and placeholders reach the end (no token is ever
        # sampled past max_tokens or the context).
        rests = following >= limits
        if draft.preempted:
            rests |= draft.is_preempted(slots)
        if self._speculation is not None:
            rests |= self._speculation.awaits(slots, starts, confirmed)
        if self._ledger.structured:
            rests |= self._structured.awaits(slots, starts, confirmed)
        num_resting = int(np.count_nonzero(rests))
        ends: Ints = np.where(rests, starts, following) if num_resting else following
        behind = confirmed > following
        if not np.count_nonzero(behind) and len(starts) <= draft.budget:  # they all decode
            return ends, len(starts) - num_resting
        ends = np.where(rests, starts, np.maximum(confirmed, following))
        lengths = ends - starts
        work = self._limits.long_prefill_token_threshold
        if work is not None and len(self._roster) > 1:
            lengths = np.minimum(lengths, self._chunks(slots, starts, work))
        num_tokens = int(np.add.reduce(lengths))
        budget = draft.budget
        if self.left_out is not None and most_important >= self.left_out:
            budget = beside_newcomers(budget, len(starts), int(np.count_nonzero(behind)))
        if num_tokens > budget:
            return starts + fair_shares(lengths, budget), budget
        return starts + lengths, num_tokens

    def _chunks(self, slots: Longs, starts: Ints, work: int) -> Ints:
        """The most of each while others want to run. Where one runs, and others only wait for what
        it computes, they wait less the more of that it takes at once."""
        context = self._limits.doubling_context
        chunks = fair_chunks(starts, work, context)
        if context is None or len(self._roster.running) > 1:
            return chunks
        return np.maximum(chunks, self._making.reach_for_all(int(slots[0])) - starts)

    def _grow(self, draft: StepDraft, order: Longs, start: int, rows: Ints, ends: Ints) -> None:
        """Ask for the blocks that rows from place `start` on lack; later rows may lose theirs.

        While blocks are plentiful, a row that needs one soon gets it now, so that most steps ask
        for none. What rows have filled since the last question is published with this one.
        """
        ledger, size = self._ledger, self._limits.block_size
        starts, confirmed, covered, limits, _ = rows
        slots = order[start : start + len(ends)]
        if self._blocks.num_free >= len(order):  # one for everybody
            ends = np.where(ends > starts, np.minimum(ends + SOON, limits - ONE), ends)
        short = (ends > covered).nonzero()[0]
        wanted = (ends[short] - covered[short] + (size - 1)) // size
        full = None
        if self._publisher is not None:
            reach = np.minimum(confirmed, starts)
            full = self._publisher.take_full(slots, reach, self._steps.posted)
        slots, indices = slots[short], covered[short] // size
        answer = self._blocks.reserve(full, slots, wanted, short + start, order)
        self._giving_way.heed(draft, answer)
        if not len(answer.block_ids) == len(slots) == np.add.reduce(wanted):  # not one for each
            granted = answer.granted
            slots, indices = slots.repeat(granted), indices.repeat(granted)
            offsets = np.arange(len(slots), dtype=np.int32)
            offsets -= (granted.cumsum(dtype=np.int32) - granted).repeat(granted)
            indices += offsets
        if len(slots):
            draft.add_blocks(seal(slots), seal(indices), answer.block_ids)
            ledger.covered[slots] = (indices + ONE) * size

    def add_rows(self, draft: StepDraft, rows: Rows, num_tokens: int) -> None:
        """Take rows into the step; what they complete of prompts is published."""
        draft.add_rows(self._ledger, rows, num_tokens)
        if self._publisher is not None and num_tokens > len(rows.slots):  # part of a prompt
            self._publisher.publish(rows.slots, np.minimum(rows.confirmed, rows.ends), draft.step)
