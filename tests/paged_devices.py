"""The CUDA device's code on the CPU: references for kernels, threads for streams.

Waiting for the device is an error of the step that does it, as it would be on a GPU.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .kernels import interpreter  # noqa: F401  # before any kernel: here they are interpreted

# isort: split
from stepahead.gpu.cuda import logprobs as logprobs_of
from stepahead.gpu.cuda.changes import Changes, TableShape
from stepahead.gpu.cuda.device import CudaDevice, Post
from stepahead.gpu.cuda.graphs import Capture
from stepahead.gpu.cuda.opening import Place, open_paged_device
from stepahead.gpu.cuda.ops import TorchOps, TritonOps
from stepahead.gpu.cuda.sampler import sample_rows
from stepahead.gpu.cuda.staging import Staging
from stepahead.gpu.cuda.streams import Mark, Streams, ThreadStreams
from stepahead.gpu.options import DeviceOptions

from .device_driver import call_at_once

__all__ = [
    "Changes",
    "CudaDevice",
    "Mark",
    "OpaqueOps",
    "Staging",
    "TableShape",
    "ThreadStreams",
    "TorchOps",
    "TritonOps",
    "logprobs_of",
    "open_paged",
    "sample_rows",
]

# As they are called without gradients; `resolve_conj` is tolist and numpy, `lift_fresh` a tensor
# made of numbers of the host.
_WAITS = (
    *("item", "is_nonzero", "_local_scalar_dense", "resolve_conj", "lift_fresh"),
    *("nonzero", "masked_select", "_unique2", "repeat_interleave"),
)
_in_kernel = threading.local()


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
        if (name in _WAITS or finds) and not getattr(_in_kernel, "depth", 0):
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

        def call(*args: Any, **kwargs: Any) -> Any:
            with _kernel():
                result = function(*args, **kwargs)
            return _opaque(result) if name == "block_copier" else result

        return call


def _opaque(function: Callable[..., None]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        with _kernel():
            function(*args)

    return call


@contextmanager
def _kernel() -> Iterator[None]:
    _in_kernel.depth = getattr(_in_kernel, "depth", 0) + 1
    try:
        yield
    finally:
        _in_kernel.depth -= 1


def open_paged(
    folder: Path,
    *,
    post: Post = call_at_once,
    ops: Any = None,
    streams: Streams | None = None,
    capture: Callable[[], Capture] | None = None,
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
    return open_paged_device(made, post, place)
