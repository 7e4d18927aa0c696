"""The simulated device, and how it fails on order."""

from collections.abc import Callable
from typing import Any

from stepahead.gpu.device import StepAddress
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.messages import StepFailed, StepPlan

from ..batching import STEP_ERROR, with_failed_row

LAUNCH_ERROR = "the device has fallen off the bus"


class FaultyDevice(SimulatedDevice):
    """Fails when told to. What it finds wrong of its own accord goes to `report`."""

    def __init__(
        self, *args: Any, report: Callable[[AssertionError], None], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._report = report
        self._failing_rows: list[int] = []
        self._fails_next = False
        self._doomed: set[int] = set()  # steps that come back failed
        self.is_broken = False  # every step fails
        self.is_lost = False  # the next launch raises

    def fail_row(self, row: int) -> None:
        self._failing_rows.append(row)

    def fail_step(self) -> None:
        self._fails_next = True

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        if self.is_lost:
            raise OSError(LAUNCH_ERROR)
        super().launch(plan, done)

    def run(self, plan: StepPlan) -> Any:
        if self._fails_next and plan.step not in self._doomed:
            self._fails_next = False
            self._doomed.update(queued.step for queued, _ in self._queue)
            self._doomed.add(plan.step)
        if self.is_broken or plan.step in self._doomed:
            self.skip(plan)
            return StepFailed(plan.step, STEP_ERROR)
        result = super().run(plan)
        if result.failed:
            self._report(AssertionError(f"the device: {result.failed[0].error}"))
        if self._failing_rows and len(result.token_ids):
            sampling = plan.samples.nonzero()[0]
            row = sampling[self._failing_rows.pop(0) % len(sampling)]
            return with_failed_row(plan, result, int(row))
        return result
