"""The Planner: fills one step, in the order of importance.

Within the order, running rows come before the waiting sequences of their class (rule 10): a
waiting sequence of a more important class is served before running rows of a lesser one.
"""

import numpy as np

from ...kvpool import prefix_root
from ...messages import (
    Admitted,
    BlocksReserved,
    Grant,
    Ints,
    Longs,
    Preempted,
    RowState,
    SequenceAdmitted,
    StepPlan,
    frozen_ints,
    frozen_longs,
    seal,
)
from .block_client import BlockClient
from .draft import Rows, StepDraft
from .ledger import Ledger
from .limits import MAX_BYPASSES, MAX_MISFITS, MAX_PREEMPTIONS, BatchLimits
from .publishing import Publisher
from .report import Report
from .roster import Roster
from .sequence import Sequence
from .shares import beside_newcomers, fair_shares
from .speculation import Speculation
from .steps import StepsInFlight
from .structured import StructuredRows
from .victims import Victims

SOON = 4  # positions in which a row will need its next block
ONE = np.array(1, dtype=np.int32)  # numpy adds an array to an array at half the cost


class Planner:
    """Plans steps over a roster; what it hands out is certain and never withdrawn."""

    def __init__(
        self,
        limits: BatchLimits,
        ledger: Ledger,
        roster: Roster,
        blocks: BlockClient,
        publisher: Publisher | None,
        victims: Victims,
        speculation: Speculation | None,
        structured: StructuredRows,
        *,
        steps: StepsInFlight,
        report: Report,
    ) -> None:
        self._limits = limits
        self._ledger = ledger
        self._roster = roster
        self._blocks = blocks
        self._publisher = publisher
        self._victims = victims
        self._speculation = speculation
        self._structured = structured
        self._steps = steps
        self._report = report
        self._left_out: int | None = None  # the class that had no budget left in the last step

    def plan(self, now_ns: int) -> StepPlan | None:
        """The next step, or None when nothing can run."""
        draft = StepDraft(self._steps.posted + 1, self._limits.max_num_batched_tokens)
        running = self._roster.running
        order, classes = running.slots, running.classes  # as they are at the start of the turn
        place = 0
        misfits: list[Sequence] = []
        for sequence in self._roster.waiting.snapshot():
            if not sequence.is_ready:
                continue
            until = int(np.searchsorted(classes, sequence.priority, side="right"))
            self._advance(draft, order, classes, place, until)
            place = max(place, until)
            outcome = self._admit(draft, sequence, order[place:], now_ns)
            if outcome == Grant.FULL:
                for misfit in misfits:
                    misfit.bypassed += 1
            elif not self._may_be_bypassed(sequence, outcome, misfits):
                break
        self._advance(draft, order, classes, place, len(order))
        if self._ledger.structured:
            self._structured.extend(draft)
        if self._speculation is not None:
            self._speculation.extend(draft, self._promised_blocks(draft))
        self._left_out = draft.left_out
        return draft.seal()

    @staticmethod
    def _may_be_bypassed(
        sequence: Sequence, outcome: Grant | None, misfits: list[Sequence]
    ) -> bool:
        """Whether less important sequences may be tried though this one cannot run now.

        Without a seat, a slot or budget (None) nobody can. One whose blocks come later keeps what
        is free for it. One that does not fit lets smaller ones pass, but not for ever: then it
        has the only reservation, on everything (rule 12).
        """
        if outcome != Grant.REFUSED or sequence.bypassed >= MAX_BYPASSES:
            return False
        misfits.append(sequence)
        return len(misfits) < MAX_MISFITS

    # Running sequences

    def _advance(
        self, draft: StepDraft, order: Longs, classes: Longs, start: int, end: int
    ) -> None:
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
            self._add_rows(draft, Rows(slots, epochs, starts, ends, confirmed), num_tokens)

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
        threshold = self._limits.long_prefill_token_threshold
        if threshold is not None and len(self._roster) > 1:
            ends = np.minimum(ends, starts + threshold)
        lengths = ends - starts
        num_tokens = int(np.add.reduce(lengths))
        budget = draft.budget
        if self._left_out is not None and most_important >= self._left_out:
            budget = beside_newcomers(budget, len(starts), int(np.count_nonzero(behind)))
        if num_tokens > budget:
            return starts + fair_shares(lengths, budget), budget
        return ends, num_tokens

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
        self._give_way(draft, answer)
        if not len(answer.block_ids) == len(slots) == np.add.reduce(wanted):  # not one for each
            granted = answer.granted
            slots, indices = slots.repeat(granted), indices.repeat(granted)
            offsets = np.arange(len(slots), dtype=np.int32)
            offsets -= (granted.cumsum(dtype=np.int32) - granted).repeat(granted)
            indices += offsets
        if len(slots):
            draft.add_blocks(seal(slots), seal(indices), answer.block_ids)
            ledger.covered[slots] = (indices + ONE) * size

    def _give_way(self, draft: StepDraft, answer: BlocksReserved | SequenceAdmitted) -> None:
        """The pool has cut tails of blocks. Who has lost only a block that it was given early runs
        on."""
        draft.add_copies(answer.copies)
        size, columns = self._limits.block_size, (answer.preempted, answer.kept, answer.saved)
        for slot, kept, saved in zip(*(column.tolist() for column in columns), strict=True):
            is_running = self._roster.is_running(self._roster.at(slot))
            if is_running and self._ledger.scheduled[slot] <= kept * size:
                self._ledger.covered[slot] = kept * size
            else:
                self._preempt(draft, slot, kept, saved)

    def _preempt(self, draft: StepDraft, slot: int, kept: int, saved: int = 0) -> None:
        """Its sequence goes back to the blocks it keeps; it waits, if it did not wait already. Of
        what it loses this step saves some in host memory."""
        sequence = self._roster.at(slot)
        self._ledger.preempt(slot, kept)
        if saved:
            self._ledger.last_step[slot] = draft.step
        if self._roster.is_running(sequence):
            self._roster.preempt(sequence)
            self._report.add(Preempted(sequence.request.serial))
        draft.preempted.add(slot)
        draft.promised = None

    def _add_rows(self, draft: StepDraft, rows: Rows, num_tokens: int) -> None:
        draft.add_rows(self._ledger, rows, num_tokens)
        if self._publisher is not None and num_tokens > len(rows.slots):  # part of a prompt
            self._publisher.publish(rows.slots, np.minimum(rows.confirmed, rows.ends), draft.step)

    # Waiting sequences

    def _admit(
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
        if not self._is_safe_to_resume(sequence):
            return Grant.REFUSED
        token_ids = ledger.confirmed_tokens(sequence)
        chunk = self._first_chunk(draft, len(token_ids))
        answer = self._blocks.admit(
            slot,
            token_ids,
            prefix_root(sequence.request.cache_salt, sequence.request.adapter),
            chunk=chunk,
            held_tokens=int(ledger.scheduled[slot]),
            is_alone=len(self._roster.running) == 0,
            promised=self._promised_blocks(draft),
            victims=self._victims.of_admission(sequence, lesser),
        )
        self._give_way(draft, answer)
        if answer.outcome == Grant.FULL:
            self._free_a_seat(draft, lesser)
            self._start(draft, sequence, slot, token_ids, answer, chunk)
            self._note_first_admission(sequence, answer, now_ns)
        return answer.outcome

    def _free_a_seat(self, draft: StepDraft, lesser: Longs) -> None:
        """Where all are taken, somebody less important gets up, and keeps its blocks."""
        while len(self._roster.running) >= self._limits.max_num_seqs:
            slot, lesser = int(lesser[-1]), lesser[:-1]
            if slot not in draft.preempted:
                num_blocks = int(self._ledger.covered[slot]) // self._limits.block_size
                self._preempt(draft, slot, kept=num_blocks)

    def _start(
        self,
        draft: StepDraft,
        sequence: Sequence,
        slot: int,
        token_ids: Ints,
        answer: SequenceAdmitted,
        chunk: int,
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
        draft.new_rows.append(self._row_state(sequence, slot, token_ids, answer.block_ids))
        rows = self._first_row(slot, len(token_ids), cached_tokens, chunk)
        self._add_rows(draft, rows, int(rows.ends[0]) - cached_tokens)

    def _first_row(self, slot: int, num_confirmed: int, cached_tokens: int, chunk: int) -> Rows:
        end = min(cached_tokens + chunk, num_confirmed)
        epoch = int(self._ledger.epoch[slot])
        columns = (epoch, cached_tokens, end, num_confirmed)
        return Rows(frozen_longs((slot,)), *(frozen_ints((value,)) for value in columns))

    def _is_safe_to_resume(self, sequence: Sequence) -> bool:
        """Rule 14: after some preemptions only where its worst case fits beside those of everyone
        earlier, so that none of them can ever take its blocks again."""
        if sequence.preemptions < MAX_PREEMPTIONS:
            return True
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

    def _first_chunk(self, draft: StepDraft, num_tokens: int) -> int:
        threshold = self._limits.long_prefill_token_threshold
        has_competitors = len(self._roster) > 1
        chunk = min(draft.budget, num_tokens)
        return min(chunk, threshold) if threshold is not None and has_competitors else chunk

    def _promised_blocks(self, draft: StepDraft) -> int:
        """Blocks that admitted prefills still lack for what they already have to compute."""
        if draft.promised is None:
            slots = self._roster.running.slots
            lacking = self._ledger.confirmed[slots] - self._ledger.covered[slots]
            size = self._limits.block_size
            draft.promised = int(((lacking + (size - 1)) // size).clip(min=0).sum())
        return draft.promised

    def _note_first_admission(
        self, sequence: Sequence, answer: SequenceAdmitted, now_ns: int
    ) -> None:
        """What a preempted sequence finds of itself later is no hit, and is not told."""
        if not sequence.was_admitted:
            sequence.was_admitted = True
            account = answer.account if self._publisher is not None else None
            serial, cached_tokens = sequence.request.serial, answer.cached_tokens
            self._report.add(Admitted(serial, cached_tokens, now_ns, account))

    def _row_state(
        self, sequence: Sequence, slot: int, token_ids: Ints, block_ids: Ints
    ) -> RowState:
        request, params = sequence.request, sequence.request.params
        return RowState(
            slot=slot,
            epoch=int(self._ledger.epoch[slot]),
            token_ids=token_ids,
            num_prompt_tokens=len(request.prompt),
            block_ids=block_ids,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=request.seed,
            min_end=int(self._ledger.min_end[slot]),
            banned_ids=request.stop_token_ids,
        )
