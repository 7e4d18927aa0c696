"""Masks of structured rows on a device: those of a plan, and those that held rows wait for."""

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..messages import Bools, Ints, Longs, SampleRows, StepPlan


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


def allowed_rows(masks: list[Ints], vocab_size: int) -> NDArray[np.bool_]:
    """Which token ids each mask allows; none beyond its last word.  # [masks, vocab_size]"""
    words = np.stack(masks).astype("<i4", copy=False)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    missing = vocab_size - bits.shape[1]
    if missing > 0:
        bits = np.pad(bits, ((0, 0), (0, missing)))
    return bits[:, :vocab_size].view(np.bool_)


def allowed_tokens(mask: Ints, vocab_size: int) -> Bools:
    """Which token ids a mask allows; none beyond its last word.  # [vocab_size]"""
    bits = np.unpackbits(mask.astype("<i4").view(np.uint8), bitorder="little")[:vocab_size]
    allowed = np.zeros(vocab_size, dtype=np.bool_)
    allowed[: len(bits)] = bits
    return allowed


def _by_row(rows: Longs, words: Ints) -> Iterator[tuple[int, Ints]]:
    if len(rows):
        yield from zip(rows.tolist(), words.reshape(len(rows), -1), strict=True)
