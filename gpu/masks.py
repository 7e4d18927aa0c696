"""Masks of structured rows on a device: those of a plan, and those that held rows wait for."""

import threading
from collections.abc import Iterator, Mapping

import numpy as np

from ..messages import Bools, Ints, Longs, SampleRows, StepPlan
from ..messages.arrays import Floats

# By eight bits of a mask, the most that their logits may be: looking all of them up at once takes a
# third of the time of writing to those that are forbidden.
_LIMITS: Floats = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(np.inf),
    np.float32(-np.inf),
)


class HeldMasks:
    """Masks of held rows whose step is not sampled yet."""

    def __init__(self) -> None:
        self._masks: dict[tuple[int, int], Ints | None] = {}  # by step and row; None: void
        self._answered = 0  # steps up to this one need no mask any more

    def add(self, masks: SampleRows) -> None:
        if masks.step <= self._answered:
            return
        void = ((row, None) for row in masks.void.tolist())
        for row, mask in (*_by_row(masks.rows, masks.words), *void):
            assert (masks.step, row) not in self._masks, "a second mask for a held row"
            self._masks[masks.step, row] = mask

    def is_complete(self, plan: StepPlan) -> bool:
        """Whether every held row of the plan has its mask."""
        held = () if plan.masks is None else plan.masks.held.tolist()
        return all((plan.step, row) in self._masks for row in held)

    def take(self, plan: StepPlan) -> dict[int, Ints]:
        """The mask of each row of the plan that has one; the step counts as answered."""
        self._answered = plan.step
        if plan.masks is None:
            return {}
        assert self.is_complete(plan), "a held row is sampled without its mask"
        masks: dict[int, Ints] = dict(_by_row(plan.masks.rows, plan.masks.words))
        for row in plan.masks.held.tolist():
            mask = self._masks.pop((plan.step, row))
            if mask is not None:
                masks[row] = mask
        return masks

    def forget(self, plan: StepPlan) -> None:
        """The step was answered without sampling."""
        self._answered = plan.step
        held = () if plan.masks is None else plan.masks.held.tolist()
        for row in held:
            self._masks.pop((plan.step, row), None)


class AwaitedMasks:
    """Held masks between the thread that brings them and the one that samples."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._masks = HeldMasks()
        self._is_closed = False

    def add(self, masks: SampleRows) -> None:
        with self._changed:
            self._masks.add(masks)
            self._changed.notify()

    def wait(self, plan: StepPlan) -> dict[int, Ints]:
        """The mask of each row of the plan that has one, once all are there."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._masks.is_complete(plan))
            if self._is_closed:
                raise RuntimeError("the device closed")
            return self._masks.take(plan)

    def forget(self, plan: StepPlan) -> None:
        """The step was answered without sampling."""
        with self._changed:
            self._masks.forget(plan)

    def close(self) -> None:
        """No masks come any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()


def apply_masks(logits: Floats, rows: Longs, masks: Mapping[int, Ints]) -> Bools:
    """What a row's mask does not allow becomes impossible; returns the lines of which at most half
    is left.  # float32 [num_samples, vocab], of these rows; bool [num_samples]"""
    is_narrow = np.zeros(len(logits), dtype=np.bool_)
    places = np.searchsorted(rows, np.array(list(masks), dtype=np.int64)).tolist()
    for place, mask in zip(places, masks.values(), strict=True):
        line = logits[place]
        limits = _LIMITS.take(mask.astype("<i4", copy=False).view(np.uint8), axis=0).reshape(-1)
        limits = limits[: len(line)]
        reached = line[: len(limits)]
        np.fmin(reached, limits, out=reached)
        line[len(limits) :] = -np.inf
        num_allowed = int(np.bitwise_count(mask.view(np.uint32)).sum(dtype=np.int64))
        is_narrow[place] = 2 * num_allowed <= len(line)
    return is_narrow


def allowed_tokens(mask: Ints, vocab_size: int) -> Bools:
    """Which token ids a mask allows; none beyond its last word.  # [vocab_size]"""
    bits = np.unpackbits(
        mask.astype("<i4", copy=False).view(np.uint8), count=vocab_size, bitorder="little"
    )
    allowed: Bools = bits.view(np.bool_)
    return allowed


def _by_row(rows: Longs, words: Ints) -> Iterator[tuple[int, Ints]]:
    if len(rows):
        yield from zip(rows.tolist(), words.reshape(len(rows), -1), strict=True)
