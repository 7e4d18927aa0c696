"""A named shape on a device, for runs one after the other: steps by hand, or whole engines."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from ...gpu.cuda.device import CudaDevice
from ...gpu.cuda.graphs import CAPTURE_S
from ...gpu.cuda.opening import Place, open_paged_device
from ...gpu.cuda.shapes import open_shape, shape_named
from ...gpu.options import DeviceOptions
from ...gpu.roofline import ModelCost, Rates, cost_of
from ...messages import SamplingParams
from ..backend import Backend
from ..config import EngineConfig
from ..engine import Engine
from ..text.toy import ToyTokenizer
from .busy import BusyMeter
from .lent import LentDevice
from .sizes import Sizes


@dataclass(frozen=True, slots=True)
class BenchPlace:
    """Where runs are made: what computes, what it does at best, and how much is run."""

    place: Place
    rates: Rates
    sizes: Sizes
    busy: BusyMeter


class OpenShape:
    """A device with a model of random weights; not to be used by two at a time."""

    def __init__(self, where: BenchPlace, name: str, *, has_graphs: bool = True) -> None:
        """Make the weights, take the memory, capture the graphs."""
        self.name = name
        self.where = where
        config = shape_named(name)
        self.cost: ModelCost = cost_of(config)
        self.max_num_seqs = where.sizes.max_num_seqs[name]
        self._post: Callable[[Callable[[], None]], object] = _at_once
        options = DeviceOptions(
            model=name,
            dtype="bfloat16",
            num_slots=2 * self.max_num_seqs,
            max_num_batched_tokens=where.sizes.max_num_batched_tokens,
            graph_capture_s=CAPTURE_S if has_graphs else 0.0,
        )
        began = time.perf_counter()
        self.device: CudaDevice = open_paged_device(
            options, self._deliver, where.place, partial(open_shape, config)
        )
        self.open_s = time.perf_counter() - began

    def _deliver(self, call: Callable[[], None]) -> None:
        self._post(call)

    @property
    def rates(self) -> Rates:
        return self.where.rates

    @property
    def sizes(self) -> Sizes:
        return self.where.sizes

    @asynccontextmanager
    async def engine(
        self, *, steps_in_flight: int = 2, max_num_seqs: int | None = None
    ) -> AsyncIterator[Engine]:
        """An engine on the device, in the running loop; it runs as many sequences at once as the
        device has room for, or fewer."""
        self._post = asyncio.get_running_loop().call_soon_threadsafe
        config = EngineConfig(
            model=self.name,
            max_num_seqs=max_num_seqs or self.max_num_seqs,
            max_num_batched_tokens=self.sizes.max_num_batched_tokens,
            max_waiting=2**16,
            steps_in_flight=steps_in_flight,
        )
        tokenizer = ToyTokenizer(self.device.facts.vocab_size)
        backend = Backend(LentDevice(self.device), tokenizer, SamplingParams())
        try:
            async with Engine(config, backend=backend) as engine:
                yield engine
        finally:
            self._post = _at_once
            gc.unfreeze()  # what a warm-up kept from the collector

    def close(self) -> None:
        """Give the memory back."""
        self.device.close()
        del self.device
        give_back(self.where.place.device)


@contextmanager
def opened(where: BenchPlace, name: str, *, has_graphs: bool = True) -> Iterator[OpenShape]:
    """A shape for the length of the block."""
    shape = OpenShape(where, name, has_graphs=has_graphs)
    try:
        yield shape
    finally:
        shape.close()


def give_back(device: torch.device) -> None:
    """Collect what nobody refers to any more, and return a GPU's memory to the driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _at_once(call: Callable[[], None]) -> None:
    call()
