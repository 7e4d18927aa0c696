"""RunningStep: a step that was queued, until its result is read."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ...messages import Ints, RowFailed, StepDone, StepPlan, frozen_ints
from ...messages.arrays import NO_INTS
from ..row_failures import NOT_NUMBERS, row_failures
from ..verify import accept, sampled_positions
from .streams import Mark, Work


class RunningStep:
    """What queued work leaves for its later parts, and what comes of it."""

    def __init__(self, plan: StepPlan, refused: Mapping[int, str]) -> None:
        """`refused` tells of rows, by their place in the plan, why their requests cannot be had."""
        self.plan = plan
        self.logits: Tensor | None = None  # [samples, vocab], between computing and sampling
        self.sampled: Tensor | None = None  # [samples] of int32, on the device
        self._refused = refused
        self._error: Exception | None = None
        self._mark: Mark | None = None
        self._fetched: Tensor | None = None  # [samples] of int32, on the host

    def caught(self, work: Work) -> Work:
        """The same work as a stream wants it: what it raises is this step's result, and nothing is
        done after that."""

        def run() -> None:
            if self._error is not None:
                return
            try:
                work()
            except Exception as error:  # whatever a model raises fails this step, and no stream
                self._error = error

        return run

    def ends_with(self, mark: Mark, fetched: Tensor | None = None) -> None:
        """The step is done at this mark; then `fetched` holds what it sampled."""
        self._mark, self._fetched = mark, fetched

    def sampled_or(self, other: Tensor) -> Tensor:
        """What was sampled; something else where the step failed before."""
        return other if self.sampled is None else self.sampled

    def wait(self) -> StepDone:
        """Wait until the device is done with the step. Raises what the step raised."""
        assert self._mark is not None, "nothing of the step is queued"
        self._mark.wait()
        self.logits = self.sampled = None
        if self._error is not None:
            raise self._error
        return self._result()

    def _result(self) -> StepDone:
        plan = self.plan
        if self._fetched is None:
            return StepDone(plan.step, NO_INTS, self._failed_beside(()))
        sampled: Ints = self._fetched.numpy().copy()
        if self._refused:
            rows, _ = sampled_positions(plan)
            sampled[np.isin(rows, list(self._refused))] = NOT_NUMBERS
        token_ids, counts = accept(plan, sampled)
        faults = {int(plan.slots[row]): error for row, error in self._refused.items()}
        failed = self._failed_beside(row_failures(plan, token_ids, counts, faults))
        return StepDone(plan.step, frozen_ints(np.maximum(token_ids, -1)), failed, counts)

    def _failed_beside(self, failed: tuple[RowFailed, ...]) -> tuple[RowFailed, ...]:
        """With the refused rows that sample nothing."""
        told = {one.row for one in failed}
        more = (RowFailed(row, why) for row, why in self._refused.items() if row not in told)
        return tuple(sorted((*failed, *more), key=lambda one: one.row))
