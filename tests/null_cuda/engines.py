"""Devices and engines on the GPU that computes nothing; every token that they say is 0."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import triton

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.actors.backend import Backend
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.gpu.cuda.device import CudaDevice
from stepahead.gpu.cuda.opening import gpu_place, open_cuda_device, open_paged_device
from stepahead.gpu.cuda.shapes import open_shape, shape_named
from stepahead.gpu.cuda.streams import no_waits
from stepahead.gpu.options import DeviceOptions
from stepahead.gpu.queued import Post

assert not triton.knobs.runtime.interpret, "kernels are launched here, and not interpreted"

_OF_DEVICES = (
    "num_blocks",
    "num_host_blocks",
    "max_num_batched_tokens",
    "kv_dtype",
    "quantization",
)


def open_named(name: str, post: Post = lambda call: call(), **options: Any) -> CudaDevice:
    """A named shape with random weights; what waits in a step is an error of it."""
    made = DeviceOptions(model=name, dtype="bfloat16", **options)
    source = partial(open_shape, shape_named(name))
    return open_paged_device(made, post, gpu_place(no_waits), source)


@asynccontextmanager
async def engine_on(device: CudaDevice, **options: Any) -> AsyncIterator[Engine]:
    """An engine on a device whose results are posted by `call_soon`."""
    config = EngineConfig(model="none", check_invariants=True, **options)
    tokenizer = ToyTokenizer(device.facts.vocab_size)
    async with Engine(config, backend=Backend(device, tokenizer, SamplingParams())) as engine:
        yield engine


def call_soon() -> Post:
    """How a device in this loop posts results."""
    loop = asyncio.get_running_loop()

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    return post


@asynccontextmanager
async def running(folder: str, dtype: str = "auto", **options: Any) -> AsyncIterator[Engine]:
    """An engine over a folder's model; `options` are the engine's, and the device's among them."""
    config = EngineConfig(model=folder, check_invariants=True, **options)
    chosen = {name: getattr(config, name) for name in _OF_DEVICES}
    named: Any = dtype
    made = DeviceOptions(model=folder, dtype=named, num_slots=2 * config.max_num_seqs, **chosen)
    device = open_cuda_device(made, call_soon(), forbid_waits=True)
    backend = Backend(device, ToyTokenizer(device.facts.vocab_size), SamplingParams())
    async with Engine(config, backend=backend) as engine:
        yield engine
