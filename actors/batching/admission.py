"""Admission: a waiting sequence starts, or goes on, where there is a seat, a slot and blocks."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ...kvpool import prefix_root
from ...messages import (
    Admitted,
    Grant,
    Ints,
    Longs,
    SequenceAdmitted,
    frozen_ints,
    frozen_longs,
    seal,
)
from .chunks import fair_chunks
from .draft import Rows, StepDraft
from .giving_way import GivingWay
from .limits import MAX_PREEMPTIONS
from .parts import Parts
from .sequence import Sequence

AddRows: TypeAlias = Callable[[StepDraft, Rows, int], None]


class Admission:
    """Admits one waiting sequence at a time."""

    def __init__(self, parts: Parts, giving_way: GivingWay, add_rows: AddRows) -> None:
        self._limits = parts.limits
        self._ledger = parts.ledger
        self._roster = parts.roster
        self._blocks = parts.blocks
        self._victims = parts.victims
        self._steps = parts.steps
        self._report = parts.report
        self._explains = parts.publisher is not None and parts.limits.explains_prefixes
        self._giving_way = giving_way
        self._add_rows = add_rows

    def admit(
        self, draft: StepDraft, sequence: Sequence, lesser: Longs, now_ns: int
    ) -> Grant | None:
        """Start or resume a waiting sequence; `lesser` are running slots of lower classes.

        None says that blocks were not the question: no budget, no seat, or no slot.
        """
        ledger = self._ledger
        lesser = lesser[~draft.is_preempted(lesser)] if draft.preempted else lesser
        lesser = self._lesser_by_their_own_class(sequence, lesser)
        if len(self._roster.running) + 1 - self._limits.max_num_seqs > len(lesser):
            return None
        if draft.budget <= 0:
            draft.left_out = sequence.priority
            return None
        slot = self._slot_for(draft, sequence)
        if slot is None:
            return None
        token_ids = ledger.confirmed_tokens(sequence)
        held_tokens = int(ledger.scheduled[slot])
        answer = self._blocks.admit(
            sequence.request.serial,
            slot,
            token_ids,
            prefix_root(sequence.request.cache_salt, sequence.request.adapter),
            chunk=self._first_chunk(draft, held_tokens, len(token_ids)),
            held_tokens=held_tokens,
            is_alone=len(self._roster.running) == 0,
            is_explained=self._explains and not sequence.was_admitted,
            promised=self.promised_blocks(draft),
            victims=self._victims.of_admission(sequence, lesser),
            most_found=sequence.most_found,
        )
        self._giving_way.heed(draft, answer)
        if answer.outcome == Grant.FULL:
            self._free_a_seat(draft, lesser)
            self._start(draft, sequence, slot, token_ids, answer)
            self._note_first_admission(sequence, answer, now_ns)
        return answer.outcome

    def _free_a_seat(self, draft: StepDraft, lesser: Longs) -> None:
        """Where all are taken, somebody less important gets up, and keeps its blocks."""
        while len(self._roster.running) >= self._limits.max_num_seqs:
            slot, lesser = int(lesser[-1]), lesser[:-1]
            if slot not in draft.preempted:
                num_blocks = int(self._ledger.covered[slot]) // self._limits.block_size
                self._giving_way.preempt(draft, slot, kept=num_blocks)

    def _start(
        self,
        draft: StepDraft,
        sequence: Sequence,
        slot: int,
        token_ids: Ints,
        answer: SequenceAdmitted,
    ) -> None:
        """The sequence has its blocks: it runs from what is there of its KV."""
        ledger, cached_tokens = self._ledger, answer.cached_tokens
        if sequence.slot is None:
            ledger.assign(slot, sequence)
        ledger.place(slot, cached_tokens, len(answer.block_ids))
        if answer.num_found:
            ledger.hit_step[slot] = draft.step
            ledger.published[slot] = cached_tokens // self._limits.block_size
        is_swapped = answer.copies is not None and len(answer.copies.in_blocks) > 0
        self._roster.run(sequence, is_swapped=is_swapped)
        draft.promised = None
        epoch = int(ledger.epoch[slot])
        draft.new_rows.append(sequence.row_state(slot, epoch, token_ids, answer.block_ids))
        chunk = self._first_chunk(draft, cached_tokens, len(token_ids))
        rows = self._first_row(slot, len(token_ids), cached_tokens, chunk)
        self._add_rows(draft, rows, int(rows.ends[0]) - cached_tokens)

    def _first_row(self, slot: int, num_confirmed: int, cached_tokens: int, chunk: int) -> Rows:
        end = min(cached_tokens + chunk, num_confirmed)
        epoch = int(self._ledger.epoch[slot])
        columns = np.array([[epoch], [cached_tokens], [end], [num_confirmed]], dtype=np.int32)
        return Rows(frozen_longs((slot,)), *seal(columns))

    def may_resume(self, draft: StepDraft, sequence: Sequence) -> bool:
        """Rule 14: after some preemptions only where its worst case fits beside those of everyone
        earlier, so that none of them can ever take its blocks again. Where one does not fit, none
        after it does."""
        if sequence.preemptions < MAX_PREEMPTIONS:
            return True
        draft.is_crowded = draft.is_crowded or not self._worst_cases_fit(sequence)
        return not draft.is_crowded

    def _worst_cases_fit(self, sequence: Sequence) -> bool:
        blocks_for = self._limits.blocks_for
        earlier = [other for other in self._roster if other.order < sequence.order]
        worst = sum(blocks_for(other.most_kv) for other in [*earlier, sequence])
        return worst <= self._limits.num_blocks

    def _lesser_by_their_own_class(self, sequence: Sequence, lesser: Longs) -> Longs:
        """Classes gained by waiting give a place before others, and no right to take from a
        running equal: they would take from each other in turn, for ever (rule 13)."""
        if not sequence.raised:
            return lesser
        priority = sequence.request.priority
        is_lesser = [self._roster.at(slot).request.priority > priority for slot in lesser.tolist()]
        return lesser[np.array(is_lesser, dtype=np.bool_)]

    def _slot_for(self, draft: StepDraft, sequence: Sequence) -> int | None:
        """Its own slot once no step in flight mentions it (rule 6), or a free one (rule 7)."""
        ledger, done = self._ledger, self._steps.done
        if sequence.slot is not None:
            return sequence.slot if ledger.last_step[sequence.slot] <= done else None
        slot = ledger.free_slot(done)
        if slot is None:
            self._take_slot_after(draft, sequence)
            slot = ledger.free_slot(done)
        return slot

    def _take_slot_after(self, draft: StepDraft, sequence: Sequence) -> None:
        """Who waits after a more important sequence gives up its slot, those first that hold no
        blocks. A slot that was in this turn's order is not given away in this turn."""
        later = [
            waiting
            for waiting in reversed(self._roster.waiting)
            if waiting.slot is not None
            and waiting.slot not in draft.preempted
            and waiting.order > sequence.order
            and self._ledger.last_step[waiting.slot] <= self._steps.done
        ]
        if later:
            least = min(later, key=self._roster.holds_blocks)
            assert least.slot is not None
            self._blocks.release(least.slot)
            self._blocks.tell()
            self._ledger.detach(least)

    def _first_chunk(self, draft: StepDraft, start: int, num_tokens: int) -> int:
        """What it may compute from `start` on, at most: from a later one never more."""
        chunk, work = min(draft.budget, num_tokens), self._limits.long_prefill_token_threshold
        if work is None or len(self._roster) == 1:
            return chunk
        fair = fair_chunks(frozen_ints((start,)), work, self._limits.doubling_context)
        return min(chunk, int(fair[0]))

    def promised_blocks(self, draft: StepDraft) -> int:
        """Blocks that admitted prefills still lack for what they already have to compute."""
        if draft.promised is None:
            slots = self._roster.running.slots
            lacking = self._ledger.confirmed[slots] - self._ledger.covered[slots]
            lacking = lacking[lacking > 0]
            size = self._limits.block_size
            draft.promised = sum(-(-tokens // size) for tokens in lacking.tolist())
        return draft.promised

    def _note_first_admission(
        self, sequence: Sequence, answer: SequenceAdmitted, now_ns: int
    ) -> None:
        """What a preempted sequence finds of itself later is no hit, and is not told."""
        if not sequence.was_admitted:
            sequence.was_admitted = True
            serial, cached_tokens = sequence.request.serial, answer.cached_tokens
            self._report.add(Admitted(serial, cached_tokens, now_ns, answer.account))
