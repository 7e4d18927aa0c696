"""The paced device: every step takes a fixed time of the real clock, and nothing is computed.

For measuring how well a host keeps a device busy. Like a real device it goes on by itself: its
steps follow each other on a time line of its own, and a thread hands over each result when it is
due, however busy the event loop is.
"""

import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

import numpy as np

from ..messages import Ints, StepDone, StepPlan, seal
from .device import DeviceFacts, StepAddress

Post: TypeAlias = Callable[[Callable[[], None]], object]


class PacedDevice:
    """Steps of `step_s` seconds each. `post` runs a call on the event loop's thread.

    `gaps` says for each step how many seconds the device had had nothing to do before it.
    """

    def __init__(self, facts: DeviceFacts, step_s: float, post: Post) -> None:
        self.facts = facts
        self.gaps: list[float] = []
        self._step_s = step_s
        self._post = post
        self._free_s = time.perf_counter()  # when it has done all it was handed
        self._due: SimpleQueue[tuple[float, Callable[[], None]] | None] = SimpleQueue()
        self._thread = Thread(target=self._hand_over, name="stepahead-paced", daemon=True)
        self._thread.start()

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        """Take a step; its result is posted when its time has passed."""
        now_s = time.perf_counter()
        self.gaps.append(max(now_s - self._free_s, 0.0))
        self._free_s = max(now_s, self._free_s) + self._step_s
        self._due.put((self._free_s, partial(done, StepDone(plan.step, _tokens(plan)))))

    def close(self) -> None:
        self._due.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        while (item := self._due.get()) is not None:
            due_s, call = item
            time.sleep(max(due_s - time.perf_counter(), 0.0))
            self._post(call)


def _tokens(plan: StepPlan) -> Ints:
    """Printable ASCII, another character for each row and step."""
    tokens = 32 + (plan.slots[plan.samples] + plan.step) % 95
    return seal(tokens.astype(np.int32))
