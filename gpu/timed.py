"""The timed device: no model and no text, only how long each step takes."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from ..messages import NO_INTS, Ints, StepDone, StepPlan, seal
from .device import DeviceFacts, StepAddress

CallAt: TypeAlias = Callable[[float, Callable[[], None]], object]  # (seconds on the clock)


class StepSeconds(Protocol):
    """A model of how long a step takes: `StepTime`, or measured `StepPoints`."""

    def seconds(self, num_tokens: int, num_kv_tokens: int) -> float:
        """For `num_tokens` computed positions that read `num_kv_tokens` positions of KV."""
        ...


class TimedDevice:
    """Runs steps one after another, each for as long as the model says; every token is 0.

    A step reaches the device `host_s` after it was planned, one plan after another: the time that
    a second step in flight hides.
    """

    def __init__(
        self,
        facts: DeviceFacts,
        clock: Callable[[], float],
        call_at: CallAt,
        step_seconds: StepSeconds,
        *,
        host_s: float = 0.0,
    ) -> None:
        self.facts = facts
        self.steps = 0
        self.computed_tokens = 0
        self.moved_blocks = 0  # between device and host, in either direction
        self.busy_s = 0.0
        self._clock = clock
        self._call_at = call_at
        self._step_seconds = step_seconds
        self._host_s = host_s
        self._host_free = 0.0  # when the host has handed over all it planned
        self._all_zeros = NO_INTS
        self._free = 0.0  # when the device has done all it was handed

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        """Take a step; its result is posted when its time has passed."""
        num_tokens = plan.num_tokens
        num_kv_tokens = int(np.add.reduce(plan.starts)) + num_tokens
        seconds = self._step_seconds.seconds(num_tokens, num_kv_tokens)
        if plan.copies is not None:
            seconds += len(plan.copies) * self.facts.host.block_copy_s
            self.moved_blocks += len(plan.copies)
        self._host_free = max(self._clock(), self._host_free) + self._host_s
        self._free = max(self._host_free, self._free) + seconds
        self.busy_s += seconds
        self.steps += 1
        self.computed_tokens += num_tokens
        result = StepDone(plan.step, self._zeros(int(np.count_nonzero(plan.samples))))
        self._call_at(self._free, lambda: done(result))

    def _zeros(self, count: int) -> Ints:
        """Part of one array that nobody ever writes."""
        if count > len(self._all_zeros):
            self._all_zeros = seal(np.zeros(2 * count, dtype=np.int32))
        return self._all_zeros[:count]

    def close(self) -> None:
        """There is nothing to let go of."""
