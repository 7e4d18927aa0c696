"""Giving way: what becomes of sequences whose blocks or seat somebody more important needs."""

from ...messages import BlocksReserved, Preempted, SequenceAdmitted
from .draft import StepDraft
from .parts import Parts


class GivingWay:
    """Preempts to the blocks that are kept (rule 16)."""

    def __init__(self, parts: Parts) -> None:
        self._limits = parts.limits
        self._ledger = parts.ledger
        self._roster = parts.roster
        self._report = parts.report

    def heed(self, draft: StepDraft, answer: BlocksReserved | SequenceAdmitted) -> None:
        """The pool has cut tails of blocks. Who has lost only a block that it was given early runs
        on."""
        draft.add_copies(answer.copies)
        size, columns = self._limits.block_size, (answer.preempted, answer.kept, answer.saved)
        for slot, kept, saved in zip(*(column.tolist() for column in columns), strict=True):
            is_running = self._roster.is_running(self._roster.at(slot))
            if is_running and self._ledger.scheduled[slot] <= kept * size:
                self._ledger.covered[slot] = kept * size
            else:
                self.preempt(draft, slot, kept, saved)

    def preempt(self, draft: StepDraft, slot: int, kept: int, saved: int = 0) -> None:
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
