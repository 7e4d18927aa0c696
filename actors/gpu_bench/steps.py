"""Decode steps by hand: rows of one length, without requests and without a scheduler."""

import time
from queue import SimpleQueue

import numpy as np

from ...gpu.device import Device
from ...messages import RowState, StepDone, StepFailed, StepPlan
from ...messages.arrays import NO_INTS, NO_LONGS, frozen_ints, frozen_longs

_WARM_UP = 4  # steps


class StepDriver:
    """Queues steps on a device whose results are posted where they come."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._results: SimpleQueue[StepDone | StepFailed] = SimpleQueue()
        self._step = 0

    def fits(self, rows: int, length: int, steps: int) -> bool:
        """Whether the device has the positions for it."""
        facts = self._device.facts
        positions = length + _WARM_UP + steps + 1
        blocks = rows * -(-positions // facts.block_size)
        return positions <= facts.max_model_len and blocks <= facts.num_blocks

    def seconds_per_step(self, rows: int, length: int, *, steps: int = 20) -> float:
        """Of `rows` sequences that have `length` positions at first; all steps are queued at once.
        Raises RuntimeError where one fails."""
        for step in range(_WARM_UP):
            self._launch(rows, length + step, self._row_states(rows, length, steps, step))
        self._wait(_WARM_UP)
        began = time.perf_counter()
        for step in range(_WARM_UP, _WARM_UP + steps):
            self._launch(rows, length + step)
        self._wait(steps)
        return (time.perf_counter() - began) / steps

    def _row_states(self, rows: int, length: int, steps: int, step: int) -> tuple[RowState, ...]:
        if step:
            return ()
        vocab, size = self._device.facts.vocab_size, self._device.facts.block_size
        blocks = -(-(length + _WARM_UP + steps + 1) // size)
        order = np.random.default_rng(rows).permutation(rows * blocks).astype(np.int32)
        token_ids = frozen_ints(np.random.default_rng(length).integers(0, vocab, length + 1))
        return tuple(
            RowState(
                slot=row,
                epoch=0,
                token_ids=token_ids,
                num_prompt_tokens=length + 1,
                block_ids=frozen_ints(order[row * blocks : (row + 1) * blocks]),
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_p=0.0,
                seed=row,
                min_end=0,
                banned_ids=(),
            )
            for row in range(rows)
        )

    def _launch(self, rows: int, start: int, new_rows: tuple[RowState, ...] = ()) -> None:
        self._step += 1
        plan = StepPlan(
            step=self._step,
            new_rows=new_rows,
            block_slots=NO_LONGS,
            block_indices=NO_INTS,
            block_ids=NO_INTS,
            slots=frozen_longs(range(rows)),
            epochs=frozen_ints([0] * rows),
            starts=frozen_ints([start] * rows),
            lengths=frozen_ints([1] * rows),
            samples=np.ones(rows, dtype=np.bool_),
        )
        self._device.launch(plan, self._results.put)

    def _wait(self, count: int) -> None:
        for _ in range(count):
            result = self._results.get(timeout=120)
            if isinstance(result, StepFailed):
                raise RuntimeError(result.error)
