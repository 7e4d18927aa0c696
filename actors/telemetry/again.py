"""Positions that are computed again: after a preemption, a failed step or a rejected draft."""

import numpy as np

from ...messages import AdmitSequence, Longs, StepPlan


class Recomputed:
    """Counts them from questions for admission and plans, in operations over whole steps."""

    def __init__(self) -> None:
        self.total = 0
        self._reach: Longs = np.zeros(64, dtype=np.int64)  # by slot: what was computed of it
        self._serials: Longs = np.full(64, -1, dtype=np.int64)
        self._before: dict[int, int] = {}  # by live serial, of those that gave up a slot

    def ask(self, ask: AdmitSequence) -> None:
        """Who is admitted goes on in this slot; what it had computed elsewhere counts, too."""
        slot, serial = ask.slot, ask.serial
        self._make_room(slot)
        owner = int(self._serials[slot])
        if owner == serial:
            return
        if owner >= 0:
            self._before[owner] = int(self._reach[slot])
        self._serials[slot], self._reach[slot] = serial, self._before.pop(serial, 0)

    def plan(self, plan: StepPlan) -> None:
        slots, ends = plan.slots, plan.starts + plan.lengths
        if not len(slots):
            return
        self._make_room(int(slots.max()))
        reach = self._reach[slots]
        again = np.minimum(ends, reach) - plan.starts
        self.total += int(again.clip(min=0).sum())
        self._reach[slots] = np.maximum(reach, ends)

    def end(self, serial: int) -> None:
        self._before.pop(serial, None)

    def _make_room(self, slot: int) -> None:
        missing = slot + 1 - len(self._reach)
        if missing > 0:
            more = missing + len(self._reach)
            self._reach = np.concatenate((self._reach, np.zeros(more, dtype=np.int64)))
            self._serials = np.concatenate((self._serials, np.full(more, -1, dtype=np.int64)))
