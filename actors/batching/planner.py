"""The Planner: fills one step, in the order of importance.

Within the order, running rows come before the waiting sequences of their class (rule 10): a
waiting sequence of a more important class is served before running rows of a lesser one.
"""

from ...messages import Grant, StepPlan
from .admission import Admission
from .draft import StepDraft
from .giving_way import GivingWay
from .limits import MAX_BYPASSES, MAX_MISFITS
from .making import MAX_AWAITING, PrefixesInMaking
from .parts import Parts
from .running import RunningRows
from .sequence import Sequence
from .speculation import Speculation


class Planner:
    """Plans steps over a roster; what it hands out is certain and never withdrawn."""

    def __init__(self, parts: Parts, speculation: Speculation | None) -> None:
        self._limits = parts.limits
        self._ledger = parts.ledger
        self._roster = parts.roster
        self._structured = parts.structured
        self._steps = parts.steps
        self._speculation = speculation
        giving_way = GivingWay(parts)
        self._making = PrefixesInMaking(parts)
        self._running = RunningRows(parts, giving_way, self._making, speculation)
        self._admission = Admission(parts, giving_way, self._running.add_rows)

    def plan(self, now_ns: int) -> StepPlan | None:
        """The next step, or None when nothing can run."""
        draft = StepDraft(self._steps.posted + 1, self._limits.max_num_batched_tokens)
        running = self._roster.running
        order, classes = running.slots, running.classes  # as they are at the start of the turn
        place = 0
        misfits: list[Sequence] = []
        num_awaiting = 0
        seatless: int | None = None  # only who came with a better class than this may find a seat
        for sequence in self._roster.waiting.snapshot():
            if seatless is not None and sequence.request.priority >= seatless:
                continue
            if not sequence.is_ready or not self._admission.may_resume(draft, sequence):
                continue  # it waits for something else than room, and nobody for it
            until = int(classes.searchsorted(sequence.priority, side="right"))
            self._running.advance(draft, order, classes, place, until)
            place = max(place, until)
            if self._making.is_awaited(sequence):
                num_awaiting += 1
                if num_awaiting == MAX_AWAITING:
                    break
                continue
            outcome = self._admission.admit(draft, sequence, order[place:], now_ns)
            if outcome == Grant.FULL:
                for misfit in misfits:
                    misfit.bypassed += 1
            elif outcome is None and sequence.raised and draft.budget > 0:
                seatless = sequence.request.priority  # it may not take what the others may (13)
            elif not self._may_be_bypassed(sequence, outcome, misfits):
                break
        self._running.advance(draft, order, classes, place, len(order))
        if self._ledger.structured:
            self._structured.extend(draft)
        if self._speculation is not None:
            self._speculation.extend(draft, self._admission.promised_blocks(draft))
        self._running.left_out = draft.left_out
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
