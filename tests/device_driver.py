"""Drive a device without a scheduler: plans made by hand, one sequence per slot.

Plain helpers for tests and measurements; every sequence gets blocks for its whole length at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import add
from queue import SimpleQueue

import numpy as np

from stepahead.gpu.device import Device
from stepahead.messages import Drafts, RowState, StepDone, StepFailed, StepPlan
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
    drafts: Sequence[Sequence[int]] = (),
) -> StepPlan:
    """A plan whose rows are (slot, start, length, samples), drafts included; `drafts` by row."""
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
        drafts=make_drafts(drafts) if any(drafts) else None,
    )


def make_drafts(drafts: Sequence[Sequence[int]]) -> Drafts:
    """The drafts of each row, none for most."""
    rows = [row for row, guess in enumerate(drafts) if guess]
    counts = [len(drafts[row]) for row in rows]
    token_ids = [token_id for row in rows for token_id in drafts[row]]
    return Drafts(frozen_longs(rows), frozen_ints(counts), frozen_ints(token_ids))


@dataclass
class Driver:
    """Launches plans on a device made with `call_at_once` and waits for each result."""

    device: Device
    step: int = 0
    results: "SimpleQueue[StepDone | StepFailed]" = field(default_factory=SimpleQueue)

    def run(
        self,
        rows: Sequence[tuple[int, int, int, bool]],
        new_rows: Sequence[RowState] = (),
        drafts: Sequence[Sequence[int]] = (),
    ) -> StepDone:
        """Run one step. Raises RuntimeError when it failed."""
        self.step += 1
        self.device.launch(make_plan(self.step, rows, new_rows, drafts), self.results.put)
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


def generate_drafted(
    device: Device,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    wrong_every: int,
    most: int = 4,
    **sampling: object,
) -> tuple[list[list[int]], int]:
    """Say the answers again, drafted from themselves, but for every so many-th token, which is
    guessed wrong; what was said, and in how many steps after the first."""
    driver = Driver(device)
    num_blocks = -(-max(map(len, map(add, prompts, answers))) // device.facts.block_size)
    outputs: list[list[int]] = [[] for _ in prompts]
    rows = [(slot, 0, len(prompt), True) for slot, prompt in enumerate(prompts)]
    new_rows = [
        make_row(slot, prompt, range(slot * num_blocks, (slot + 1) * num_blocks), **sampling)
        for slot, prompt in enumerate(prompts)
    ]
    drafts: list[list[int]] = [[] for _ in prompts]
    steps = -1
    while rows:
        done = driver.run(rows, new_rows, drafts)
        counts = [1] * len(rows) if done.counts is None else done.counts.tolist()
        said = iter(done.token_ids.tolist())
        for (slot, *_), count in zip(rows, counts, strict=True):
            outputs[slot] += islice(said, count)
        rows, drafts, new_rows = [], [], []
        for slot, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            known = len(outputs[slot])
            if known < len(answer):
                right = enumerate(answer[known : min(known + most, len(answer) - 1)], start=known)
                drafts.append([i if n % wrong_every else (i + 1) % 96 for n, i in right])
                rows.append((slot, len(prompt) + known - 1, 1 + len(drafts[-1]), True))
        steps += 1
    return outputs, steps
