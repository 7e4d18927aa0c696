"""Steps in flight: posted to the Executor and not answered yet."""

from collections import deque
from collections.abc import Iterator

from ...messages import StepPlan


class StepsInFlight:
    """Plans in posting order. `done` is the last step whose result was applied (rule 3)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.posted = 0
        self.done = 0
        self._plans: deque[tuple[StepPlan, int]] = deque()

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[StepPlan]:
        return (plan for plan, _ in self._plans)

    @property
    def is_full(self) -> bool:
        return len(self._plans) >= self.limit

    def post(self, plan: StepPlan, changes: int) -> None:
        """`changes` is the number of epochs begun when it was planned."""
        assert plan.step == self.posted + 1
        self.posted = plan.step
        self._plans.append((plan, changes))

    def take_oldest(self, step: int) -> tuple[StepPlan, int]:
        """The plan that a result answers, and the epochs begun when it was planned."""
        plan, changes = self._plans.popleft()
        assert plan.step == step, f"step {step} came back while {plan.step} is the oldest"
        self.done = step
        return plan, changes
