"""Which kernels a device launches, in which configurations, before and while it serves.

Run as a program, since in a process of its own Triton is no interpreter: every launch is looked up
as for an H200, and nothing is compiled or run. For each argument, which is options as JSON, it
prints what serving was the first to launch; for a number, of positions, what steps of a large shape
launch to attend that those of `step_kinds` have not, and behind it all that these launch.
"""

import json
import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from stepahead.gpu.attention import Scores
from stepahead.gpu.cuda.attention import StepKind, step_kinds
from stepahead.gpu.cuda.matrices import bits_of
from stepahead.gpu.cuda.opening import Place, open_paged_device
from stepahead.gpu.cuda.ops import TritonOps
from stepahead.gpu.cuda.profiling import padding_step
from stepahead.gpu.cuda.shapes import SHAPES, open_shape
from stepahead.gpu.cuda.shared_prefix import most_tiles
from stepahead.gpu.cuda.streams import ThreadStreams
from stepahead.gpu.cuda.weights import load_decoder_weights
from stepahead.gpu.kernels.attention_parts import PagedRows, SharedRuns
from stepahead.gpu.kernels.cascade import rows_per_tile
from stepahead.gpu.loading.weights import Weights
from stepahead.gpu.options import DeviceOptions
from stepahead.messages import Adjustments, Copies, RowMasks, StepDone, StepPlan
from stepahead.messages.arrays import NO_LONGS, frozen_ints, frozen_longs
from stepahead.messages.token_bias import TokenBias

from ..device_driver import Driver, call_at_once, make_plan, make_row
from ..run_again import RunAgain

# Sizes of whole groups; heads whose shared blocks are worth reading once; logits of an odd number
# of stretches.
CONFIG = replace(
    SHAPES["tiny"],
    hidden_size=64,
    num_layers=1,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=96,
    windows=(None,),
)
SAMPLING: tuple[dict[str, object], ...] = (
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
)

WISHES: tuple[dict[str, object], ...] = (
    {"adjustments": Adjustments(repetition_penalty=1.3)},
    {"adjustments": Adjustments(logit_bias=TokenBias({3: 1.0}), no_repeat_ngram_size=2)},
    {"adjustments": Adjustments(logits_processors=("none",))},
    {"temperature": 1.0, "typical_p": 0.5},
    {"temperature": 1.0, "top_p": 0.5, "adjustments": Adjustments(logits_processors=("none",))},
)
BANS: tuple[dict[str, object], ...] = ({}, {"banned_ids": (5,), "min_end": 100})

launches: set[str] = set()


class Target:
    """An H200, as far as choosing what to compile goes."""

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def look_up(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """In place of a launch: what it would be compiled for."""
    *_, binder = self.device_caches[0]
    bound, specialisation, rest = binder(*args, **options)
    launches.add(f"{self.__name__} {specialisation} {rest}")
    if "sampled_ptr" in bound:
        bound["sampled_ptr"].zero_()  # what lies there may be neither a token nor a known failure


def serve(device: Any) -> None:
    """Prompts, tokens and both together, of every number of rows and length that matters."""
    driver = Driver(device)

    def run(rows: list[tuple[int, int, int, bool]], sampling: dict[str, object]) -> None:
        new_rows = [
            make_row(slot, [1] * (start + length), range((start + length) // 16 + 1), **sampling)
            for slot, start, length, _ in rows
        ]
        driver.run(rows, new_rows)

    for sampling in SAMPLING:
        for length in (1, 2, 9, 40, 100):
            run([(0, 0, length, True)], sampling)
            for count in (1, 2, 3, 5, 31):
                for start in (7, 500):  # with many blocks, all of which they share, or none
                    singles = [(1 + row, start, 1, True) for row in range(count)]
                    run(singles, sampling)
                    run([*singles, (0, 0, length, True)], sampling)


def serve_wishes(device: Any) -> None:
    """What single requests wish of their logits, with masks and without."""
    driver = Driver(device)
    words = frozen_ints([-1] * (CONFIG.vocab_size // 32))
    for wish in WISHES:
        for bans in BANS:
            for masks in (None, RowMasks(frozen_longs([0]), words, NO_LONGS)):
                rows = [make_row(0, [1, 2, 3], [0], **wish, **bans)]
                plan = make_plan(0, [(0, 0, 3, True)], rows)
                launch(driver, replace(plan, masks=masks))


def swap(device: Any) -> None:
    """Blocks to the host and from there."""
    moved = Copies(*(frozen_ints([block]) for block in (1, 0, 0, 2)))
    launch(Driver(device), replace(make_plan(0, []), copies=moved))


def launch(driver: Driver, plan: StepPlan) -> None:
    driver.step += 1
    driver.device.launch(replace(plan, step=driver.step), driver.results.put)
    result = driver.results.get(timeout=120)
    assert isinstance(result, StepDone), result


def new_launches(**changes: Any) -> list[str]:
    """What a device of these options launches for the first time when it serves."""
    options = DeviceOptions(
        model="tiny",
        dtype="bfloat16",
        num_slots=64,
        max_num_batched_tokens=256,
        num_blocks=64,
        **changes,
    )
    model = open_shape(CONFIG, torch.bfloat16)
    assert model.fast is not None
    files = Weights(model.fast[1], torch.bfloat16)
    weights = load_decoder_weights(CONFIG, files, bits=bits_of(options))
    launches.clear()
    padding_step(options, CONFIG, weights, TritonOps(), CONFIG.context_length)()
    place = Place(torch.device("cpu"), TritonOps(), ThreadStreams, RunAgain)
    device = open_paged_device(
        options,
        call_at_once,
        place,
        partial(open_shape, CONFIG),
        processors={"none": lambda logits, rows: None},
    )
    known = frozenset(launches)
    serve(device)
    serve_wishes(device)
    if options.num_host_blocks:
        swap(device)
    device.close()
    assert known, "nothing was looked up"
    return sorted(launches - known)


# Of a shape that is too large to be computed here: Llama-3.1-8B in an engine of 512 rows

HEADS, KV_HEADS, DIM, BLOCK, ROWS, PROCESSORS = 32, 8, 128, 16, 512, 132


def attending(kinds: Iterable[StepKind], positions: int) -> set[str]:
    """What steps launch to attend."""
    launches.clear()
    memory = torch.empty((BLOCK, KV_HEADS, DIM), dtype=torch.bfloat16)
    table = torch.empty((2 * ROWS, positions // BLOCK), dtype=torch.int32)
    for kind in kinds:
        words = torch.empty(2 * kind.num_rows + 4 * kind.num_tiles, dtype=torch.int32)
        columns = words.new_empty(kind.num_rows + 1), words[: kind.num_rows], words[: kind.num_rows]
        shared = SharedRuns.of(words, kind.num_rows) if kind.num_tiles else None
        rows = PagedRows(*columns, table, BLOCK, kind.longest, kind.has_singles, shared)
        query = torch.empty((kind.num_rows, HEADS, DIM), dtype=torch.bfloat16)
        TritonOps.attend(query, memory, memory, rows, Scores(1.0), processors=PROCESSORS)
    return set(launches)


def beyond_kinds(positions: int) -> tuple[list[str], list[str]]:
    """What steps of all sorts launch to attend and `step_kinds` have not, and what these have."""
    rng, size = random.Random(positions), rows_per_tile(HEADS, KV_HEADS)

    def any_kind() -> StepKind:
        num_rows = rng.choice([1, rng.randint(1, 40), rng.randint(1, ROWS)])
        longest = rng.choice([1, rng.randint(1, 40), rng.randint(1, 8192)])
        has_singles = longest > 1 and rng.random() < 0.5
        return StepKind(num_rows, longest, has_singles, rng.randint(0, most_tiles(num_rows, size)))

    kinds = step_kinds(
        ROWS,
        most_tiles(ROWS, size),
        HEADS,
        KV_HEADS,
        most_positions=positions,
        processors=PROCESSORS,
    )
    known = attending(kinds, positions)
    met = attending((any_kind() for _ in range(1000)), positions)
    return sorted(met - known), sorted(known)


if __name__ == "__main__":
    driver.set_active(Target())
    JITFunction.run = look_up
    for given in map(json.loads, sys.argv[1:]):
        print(json.dumps(beyond_kinds(given) if isinstance(given, int) else new_launches(**given)))
