"""Drive a device without a scheduler: plans made by hand, one sequence per slot.

Plain helpers for tests and measurements; every sequence gets blocks for its whole length at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np

from stepahead.gpu.device import Device
from stepahead.messages import RowState, StepDone, StepFailed, StepPlan
from stepahead.messages.arrays import NO_INTS, NO_LONGS, frozen_ints, frozen_longs


def call_at_once(call: Callable[[], None]) -> None:
    """Stands in for an event loop: results are handled on the device's own thread."""
    call()


def make_row(
    slot: int, token_ids: Sequence[int], block_ids: Sequence[int], **changes: object
) -> RowState:
    """A greedy row at epoch 0; `changes` replace single fields."""
    fields: dict[str, object] = {
        "slot": slot,
        "epoch": 0,
        "token_ids": frozen_ints(token_ids),
        "num_prompt_tokens": len(token_ids),
        "block_ids": frozen_ints(block_ids),
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 0,
        "min_end": 0,
        "banned_ids": (),
    }
    return RowState(**(fields | changes))  # type: ignore[arg-type]  # fields checked by tests


def make_plan(
    step: int,
    rows: Sequence[tuple[int, int, int, bool]],
    new_rows: Sequence[RowState] = (),
) -> StepPlan:
    """A plan whose rows are (slot, start, length, samples)."""
    slots, starts, lengths, samples = zip(*rows, strict=True) if rows else ((), (), (), ())
    return StepPlan(
        step=step,
        new_rows=tuple(new_rows),
        block_slots=NO_LONGS,
        block_indices=NO_INTS,
        block_ids=NO_INTS,
        slots=frozen_longs(slots),
        epochs=frozen_ints([0] * len(slots)),
        starts=frozen_ints(starts),
        lengths=frozen_ints(lengths),
        samples=np.array(samples, dtype=np.bool_),
    )


@dataclass
class Driver:
    """Launches plans on a device made with `call_at_once` and waits for each result."""

    device: Device
    step: int = 0
    results: "SimpleQueue[StepDone | StepFailed]" = field(default_factory=SimpleQueue)

    def run(
        self, rows: Sequence[tuple[int, int, int, bool]], new_rows: Sequence[RowState] = ()
    ) -> StepDone:
        """Run one step. Raises RuntimeError when it failed."""
        self.step += 1
        self.device.launch(make_plan(self.step, rows, new_rows), self.results.put)
        result = self.results.get(timeout=120)
        if isinstance(result, StepFailed):
            raise RuntimeError(result.error)
        return result


def generate(
    device: Device,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    chunk: int | None = None,
    **sampling: object,
) -> list[list[int]]:
    """Run prompts together, prefilled one after the other in chunks, then decode in one batch."""
    driver = Driver(device)
    size = device.facts.block_size
    outputs: list[list[int]] = [[] for _ in prompts]
    next_block = 0
    for slot, prompt in enumerate(prompts):
        num_blocks = -(-(len(prompt) + num_tokens) // size)
        blocks = range(next_block, next_block + num_blocks)
        next_block += num_blocks
        new_rows = [make_row(slot, prompt, blocks, **sampling)]
        for start in range(0, len(prompt), chunk or len(prompt)):
            length = min(chunk or len(prompt), len(prompt) - start)
            is_last = start + length == len(prompt)
            done = driver.run([(slot, start, length, is_last)], new_rows)
            new_rows = []
        outputs[slot].append(int(done.token_ids[0]))
    for place in range(num_tokens - 1):
        rows = [(slot, len(prompt) + place, 1, True) for slot, prompt in enumerate(prompts)]
        done = driver.run(rows)
        for output, token_id in zip(outputs, done.token_ids.tolist(), strict=True):
            output.append(token_id)
    return outputs
