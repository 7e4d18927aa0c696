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
        self._plans: deque[StepPlan] = deque()

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[StepPlan]:
        return iter(self._plans)

    @property
    def is_full(self) -> bool:
        return len(self._plans) >= self.limit

    def post(self, plan: StepPlan) -> None:
        assert plan.step == self.posted + 1
        self.posted = plan.step
        self._plans.append(plan)

    def take_oldest(self, step: int) -> StepPlan:
        """The plan that a result answers."""
        plan = self._plans.popleft()
        assert plan.step == step, f"step {step} came back while {plan.step} is the oldest"
        self.done = step
        return plan
