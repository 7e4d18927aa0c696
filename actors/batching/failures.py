"""What becomes of sequences when the device fails a step or a row (rules 18 and 19)."""

from typing import Protocol

from ...messages import FinishReason, Longs, Preempted, RowFailed, StepPlan
from .limits import MAX_FAILED_STEPS
from .parts import Parts
from .sequence import Sequence


class End(Protocol):
    """Ends a live sequence; an unknown serial is a no-op."""

    def __call__(self, serial: int, reason: FinishReason, *, error: str | None) -> None: ...


class Failures:
    """Voids what a failure has made untrue, and lets the innocent start again."""

    def __init__(self, parts: Parts, end: End) -> None:
        self._ledger = parts.ledger
        self._roster = parts.roster
        self._blocks = parts.blocks
        self._steps = parts.steps
        self._report = parts.report
        self._end = end
        self._doomed = 0  # steps up to this one were in flight when one of them failed

    def fail_step(self, plan: StepPlan, error: str) -> bool:
        """All sequences in flight start again, or fail when it happens too often; who waits
        already loses what it holds. What steps in flight after it still bring does not count.

        False says that it failed only because of an earlier one, which dealt with its sequences.
        """
        if plan.step <= self._doomed:
            return False
        self._doomed = self._steps.posted
        for slot in self._touched_since(self._ledger.last_step, plan.step):
            sequence = self._roster.at(slot)
            if self._roster.is_running(sequence):
                self._retry(sequence, error)
            else:
                self.drop(sequence)
        return True

    def fail_rows(self, plan: StepPlan, failures: tuple[RowFailed, ...]) -> None:
        """Those requests fail alone. What is not known to be written is not found any more, and
        whoever started upon such blocks starts again (rule 19)."""
        for failed in failures:
            slot = int(plan.slots[failed.row])
            if plan.epochs[failed.row] >= self._ledger.valid_from[slot]:
                serial = self._roster.at(slot).request.serial
                self._end(serial, FinishReason.ERROR, error=failed.error)
        for slot in self._touched_since(self._ledger.hit_step, plan.step):
            sequence = self._roster.at(slot)
            if self._roster.is_running(sequence):
                self._start_again(sequence)
            else:
                self.drop(sequence)

    def _touched_since(self, steps: Longs, step: int) -> list[int]:
        """The slots of live sequences whose entry in `steps` is not before `step`."""
        slots: list[int] = (steps >= step).nonzero()[0].tolist()
        return [slot for slot in slots if self._ledger.sequences[slot] is not None]

    def _retry(self, sequence: Sequence, error: str) -> None:
        sequence.failed_steps += 1
        if sequence.failed_steps > MAX_FAILED_STEPS:
            self._end(sequence.request.serial, FinishReason.ERROR, error=error)
            return
        self._start_again(sequence)

    def _start_again(self, sequence: Sequence) -> None:
        """It waits in its place and is computed afresh."""
        self.drop(sequence)
        self._roster.preempt(sequence)
        self._report.add(Preempted(sequence.request.serial))

    def drop(self, sequence: Sequence) -> None:
        """Results in flight do not count, and nothing of its KV is kept."""
        assert sequence.slot is not None
        self._blocks.release(sequence.slot)
        self._ledger.preempt(sequence.slot, kept_blocks=0)
        self._ledger.void(sequence.slot)
