"""The CUDA device's code on the CPU: references for kernels, threads for streams.

Waiting for the device is an error of the step that does it, as it would be on a GPU.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .kernels import interpreter  # noqa: F401  # before any kernel: here they are interpreted

# isort: split
from stepahead.gpu.cuda import logprobs as logprobs_of
from stepahead.gpu.cuda.changes import Changes, TableShape
from stepahead.gpu.cuda.decoder import PagedDecoder
from stepahead.gpu.cuda.device import CudaDevice
from stepahead.gpu.cuda.graphs import Capture
from stepahead.gpu.cuda.host_buffers import HostBuffers
from stepahead.gpu.cuda.opening import Place, open_paged_device
from stepahead.gpu.cuda.ops import TorchOps, TritonOps
from stepahead.gpu.cuda.profiling import padding_step
from stepahead.gpu.cuda.runner import StepRunner
from stepahead.gpu.cuda.sampler import sample_rows
from stepahead.gpu.cuda.staging import Staging
from stepahead.gpu.cuda.streams import Mark, Streams, ThreadStreams
from stepahead.gpu.cuda.weights import load_decoder_weights
from stepahead.gpu.loading.weights import Weights
from stepahead.gpu.logits_processors import LogitsProcessors
from stepahead.gpu.options import DeviceOptions
from stepahead.gpu.queued import Post

from .device_driver import call_at_once

__all__ = [
    "Changes",
    "CudaDevice",
    "HostBuffers",
    "Mark",
    "OpaqueOps",
    "PagedDecoder",
    "Post",
    "Staging",
    "StepRunner",
    "Streams",
    "TableShape",
    "ThreadStreams",
    "TorchOps",
    "TritonOps",
    "Weights",
    "load_decoder_weights",
    "logprobs_of",
    "one_thread",
    "open_paged",
    "padding_step",
    "sample_rows",
]

# As they are called without gradients; `resolve_conj` is tolist and numpy, `lift_fresh` a tensor
# made of numbers of the host.
_WAITS = (
    *("item", "is_nonzero", "_local_scalar_dense", "resolve_conj", "lift_fresh"),
    *("nonzero", "masked_select", "_unique2", "repeat_interleave"),
)


class Waited(RuntimeError):
    """An operation would have waited for the GPU."""


class NoWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what would make the host wait for a GPU, outside of kernels."""

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = function.overloadpacket.__name__
        finds = name.startswith("index") and any(map(_has_mask, args))
        finds |= name == "where" and len(args) == 1
        if name in _WAITS or finds:
            raise Waited(f"{name} waits for the device")
        return function(*args, **(kwargs or {}))


def _has_mask(argument: Any) -> bool:
    """Whether it is what a tensor was indexed by, with a mask among it."""
    return isinstance(argument, (list, tuple)) and any(
        isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in argument
    )


class OpaqueOps:
    """References that may do what they like, as kernels do."""

    def __init__(self, ops: Any = TorchOps) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._ops, name)
        if name == "block_copier":
            return lambda *args, **kwargs: _opaque(function(*args, **kwargs))
        return _opaque(function)


def _opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


def open_paged(
    folder: Path,
    *,
    post: Post = call_at_once,
    ops: Any = None,
    streams: Streams | None = None,
    capture: Callable[[], Capture] | None = None,
    processors: LogitsProcessors | None = None,
    **options: object,
) -> CudaDevice:
    """A device in float32 over a tiny model; no step of it may wait, unless `streams` allow it."""
    fields: dict[str, object] = {"dtype": "float32", "num_blocks": 64, "block_size": 4}
    place = Place(
        torch.device("cpu"),
        ops or OpaqueOps(),
        lambda: streams or ThreadStreams(around=NoWaits),
        capture,
    )
    made = DeviceOptions(model=str(folder), **(fields | options))  # type: ignore[arg-type]
    return open_paged_device(made, post, place, processors=processors)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Operations this small take less time alone than with a team that has to wake up. Import it
    where devices are opened."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
