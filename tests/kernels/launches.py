"""Which kernels a device launches, in which configurations, before and while it serves.

Run as a program, since in a process of its own Triton is no interpreter: every launch is looked up
as for an H200, and nothing is compiled or run. For each argument, which is options as JSON, it
prints what serving was the first to launch.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from stepahead.gpu.cuda.matrices import bits_of
from stepahead.gpu.cuda.opening import Place, open_paged_device
from stepahead.gpu.cuda.ops import TritonOps
from stepahead.gpu.cuda.profiling import padding_step
from stepahead.gpu.cuda.shapes import SHAPES, open_shape
from stepahead.gpu.cuda.streams import ThreadStreams
from stepahead.gpu.cuda.weights import load_decoder_weights
from stepahead.gpu.loading.weights import Weights
from stepahead.gpu.options import DeviceOptions

from ..device_driver import Driver, call_at_once, make_row

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

launches: set[str] = set()


class Target:
    """An H200, as far as choosing what to compile goes."""

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Once:
    """Stands in for graphs: what would be captured is run."""

    def warm_up(self, run: Callable[[], None]) -> None:
        run()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        return run

    def bytes_free(self) -> int:
        return 0


def look_up(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """In place of a launch: what it would be compiled for."""
    *_, binder = self.device_caches[0]
    _, specialisation, rest = binder(*args, **options)
    launches.add(f"{self.__name__} {specialisation} {rest}")


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
    place = Place(torch.device("cpu"), TritonOps(), ThreadStreams, Once)
    device = open_paged_device(options, call_at_once, place, partial(open_shape, CONFIG))
    known = frozenset(launches)
    serve(device)
    device.close()
    assert known, "nothing was looked up"
    return sorted(launches - known)


if __name__ == "__main__":
    driver.set_active(Target())
    JITFunction.run = look_up
    for given in sys.argv[1:]:
        print(json.dumps(new_launches(**json.loads(given))))
