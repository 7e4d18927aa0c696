"""Whole engines over a tiny model: on the CUDA device's code, or on the processor's device."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stepahead import Engine, EngineConfig, Result, SamplingParams
from stepahead.actors.backend import Backend
from stepahead.actors.batching import Drafter
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.gpu.cpu import open_cpu_device
from stepahead.gpu.device import Device
from stepahead.gpu.options import DeviceOptions

from .paged_devices import open_paged
from .tiny_models import make_folder

VOCAB = 512  # the toy tokenizer's
OPTIONS: dict[str, Any] = {
    "block_size": 4,
    "num_blocks": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "check_invariants": True,
}
_FOR_DEVICES = ("num_blocks", "block_size", "num_host_blocks", "max_num_batched_tokens")


def make_engine_folder(folder: Path, **changes: Any) -> Path:
    return make_folder(folder, "llama", vocab_size=VOCAB, initializer_range=0.5, **changes)


@asynccontextmanager
async def running(
    folder: Path,
    *,
    is_paged: bool = True,
    drafter: Drafter | None = None,
    parts: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Engine]:
    """An engine in float32; `parts` are what `open_paged` takes beside options."""
    config = EngineConfig(**(OPTIONS | options))
    loop = asyncio.get_running_loop()
    chosen = {name: getattr(config, name) for name in _FOR_DEVICES}
    chosen["num_slots"] = 2 * config.max_num_seqs

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    device: Device
    if is_paged:
        device = open_paged(folder, post=post, **(parts or {}), **chosen)
    else:
        made = DeviceOptions(model=str(folder), dtype="float32", **chosen)
        device = open_cpu_device(made, post)
    backend = Backend(device, ToyTokenizer(VOCAB), SamplingParams(), drafter)
    async with Engine(config, backend=backend) as engine:
        yield engine


def prompts(count: int = 10, *, shared: int = 0) -> list[list[int]]:
    """Prompts of 1 to 37 tokens, behind so many that all of them begin with."""
    rng = np.random.default_rng(11)
    begin = rng.integers(3, 250, shared).tolist()
    return [begin + rng.integers(3, 250, 1 + 4 * n).tolist() for n in range(count)]


def ways(max_tokens: int = 16) -> list[SamplingParams]:
    """Greedy and drawn, in turns."""
    return [
        SamplingParams(
            temperature=0.9 * (n % 2), seed=n, max_tokens=max_tokens + n % 3, ignore_eos=True
        )
        for n in range(4)
    ]


async def say(
    engine: Engine, asked: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> list[Result]:
    """All of it at once, with parameters in turns."""
    return await asyncio.gather(
        *(engine.generate(list(prompt), params[n % len(params)]) for n, prompt in enumerate(asked))
    )


def ids_of(results: Sequence[Result]) -> list[tuple[int, ...]]:
    return [tuple(result.token_ids) for result in results]
