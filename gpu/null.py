"""The null device: no model and no time, for measuring what the control plane costs."""

import numpy as np

from ..messages import StepDone, StepPlan, seal
from .device import DeviceFacts, StepAddress


class NullDevice:
    """Answers every step at once; every token is 0."""

    def __init__(self, facts: DeviceFacts, num_slots: int) -> None:
        self.facts = facts
        self._zeros = seal(np.zeros(num_slots, dtype=np.int32))

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        done(StepDone(plan.step, self._zeros[: np.count_nonzero(plan.samples)]))

    def close(self) -> None:
        """There is nothing to let go of."""
