"""The null device: no model and no time, for measuring what the control plane costs."""

import numpy as np

from ..messages import StepDone, StepPlan, seal
from .device import DeviceFacts, StepAddress


class NullDevice:
    """Answers every step at once; every token is 0."""

    def __init__(self, facts: DeviceFacts) -> None:
        self.facts = facts

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        token_ids = np.zeros(int(plan.samples.sum()), dtype=np.int32)
        seal(token_ids)
        done(StepDone(plan.step, token_ids))

    def close(self) -> None:
        """There is nothing to let go of."""
