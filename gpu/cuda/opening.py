"""From a model to a device on a GPU: what must be true, and what is made."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from ...messages import ConfigError
from ..device import DeviceFacts
from ..host import HostMemory
from ..kv import bytes_per_position
from ..loading.account import WeightSource
from ..loading.resolve import resolve_model
from ..loading.weights import Weights
from ..logits_processors import LogitsProcessors
from ..memory import PoolSize, size_host, size_pool
from ..models.config import ModelConfig
from ..models.opening import OpenModel, has_fast_decoder, open_model
from ..options import DeviceOptions
from ..queued import Post
from ..reloading import require_same_shape
from .decoder import PagedDecoder
from .device import CudaDevice
from .finding import require_gpu, require_launchers
from .frames import forget_frames
from .graphs import Capture, CudaCapture, GraphFacts
from .kv_memory import KVMemory, kv_dtype_of
from .matrices import bits_of, weight_bytes
from .memory import check_weights, free_and_total, size_gpu_pool
from .ops import Ops, TritonOps
from .profiling import profile_memory
from .reloading import replace_weights
from .runner import StepRunner
from .staging import Staging
from .streams import Around, CudaStreams, Streams, no_waits
from .tables import DeviceTables
from .weights import DecoderWeights, load_decoder_weights

Source: TypeAlias = Callable[[torch.dtype], OpenModel]
"""Opens the model to run, in this dtype."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device computes, and with what."""

    device: torch.device
    ops: Ops
    streams: Callable[[], Streams]
    capture: Callable[[], Capture] | None = None  # what graphs are made with; None: there are none


def open_cuda_device(
    options: DeviceOptions,
    post: Post,
    *,
    source: Source | None = None,
    processors: LogitsProcessors | None = None,
    forbid_waits: bool = False,
) -> CudaDevice:
    """Load a model onto the first GPU: that of `source`, or of the options. Raises ConfigError,
    with what would work, where no GPU can run it, and ModelError.

    With `forbid_waits` whatever makes a step wait for the GPU is an error of that step.
    """
    place = gpu_place(no_waits if forbid_waits else nullcontext)
    return open_paged_device(options, post, place, source, processors)


def gpu_place(around: Around = nullcontext) -> Place:
    """The first GPU; `around` is entered for every piece of work. Raises ConfigError, with what
    would help, where there is none that can run steps."""
    require_gpu()
    require_launchers()
    device = torch.device("cuda", torch.cuda.current_device())
    streams = partial(CudaStreams, device, around)
    return Place(device, TritonOps(), streams, partial(CudaCapture, device))


def open_paged_device(
    options: DeviceOptions,
    post: Post,
    place: Place,
    source: Source | None = None,
    processors: LogitsProcessors | None = None,
) -> CudaDevice:
    """The same device anywhere: on the CPU its operations are references, its streams threads."""
    _require_possible(options)
    dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16

    def load() -> tuple[StepRunner, DeviceFacts]:
        if place.device.type == "cuda":
            torch.cuda.set_device(place.device)  # each thread has its own
        model = (source or _source_of(options.model))(dtype)
        return _Opening(options, place, dtype, model, processors or {}).make()

    def reload(runner: StepRunner, facts: DeviceFacts, name: str) -> DeviceFacts:
        model = _source_of(name)(dtype)
        require_same_shape(runner.kv.layers, facts, model, Path(name))
        config, files = _fast(model)
        replace_weights(runner.decoder, config, Weights(files, dtype), name)
        return replace(facts, model=Path(name).name)

    return CudaDevice(load, post, reload)


def _require_possible(options: DeviceOptions) -> None:
    if options.deterministic:
        raise ConfigError(
            "the cuda device cannot do deterministic yet; leave it out, or take device='cpu'"
        )
    if options.dtype == "float32" and bits_of(options) is not None:
        raise ConfigError(
            f"quantization {options.quantization!r} takes dtype 'auto' or 'bfloat16', not 'float32'"
        )


def _source_of(name: str) -> Source:
    def open_it(dtype: torch.dtype) -> OpenModel:
        path = resolve_model(name)
        if not has_fast_decoder(path):
            raise ConfigError(
                f"{path} is of a family that the cuda device cannot run yet; take device='cpu'"
            )
        return open_model(path, _name_of(dtype))

    return open_it


def _name_of(dtype: torch.dtype) -> str:
    """What options and facts call a type of torch."""
    return str(dtype).removeprefix("torch.")


def _fast(model: OpenModel) -> tuple[ModelConfig, WeightSource]:
    assert model.fast is not None, "the model has no fast path"
    return model.fast


class _Opening:
    """What is found out and made, one after the other."""

    def __init__(
        self,
        options: DeviceOptions,
        place: Place,
        dtype: torch.dtype,
        model: OpenModel,
        processors: LogitsProcessors,
    ) -> None:
        self._options = options
        self._place = place
        self._dtype = dtype
        self._model = model
        self._processors = processors
        self._config, self._source = _fast(model)
        self._kv_dtype = kv_dtype_of(options, dtype, place.device)
        self._position_bytes = bytes_per_position(model.layers, self._kv_dtype.itemsize)

    def make(self) -> tuple[StepRunner, DeviceFacts]:
        """Raises ConfigError where memory does not suffice."""
        size = weight_bytes(self._source, self._dtype, bits_of(self._options))
        if self._place.device.type != "cuda":
            return self._made(size)
        free, total = free_and_total(self._place.device)
        check_weights(self._options, size, free=free, total=total)
        try:
            return self._made(size)
        except torch.OutOfMemoryError as error:
            forget_frames(error)  # who is told may open a smaller one
            raise ConfigError(
                f"{self._options.model} does not fit: {size / 1e9:.2f} GB of weights, KV and steps "
                f"take more than the {free / 1e9:.2f} GB that are free of {total / 1e9:.2f} GB of "
                "the GPU's memory; take a smaller model, less KV, or device='cpu'"
            ) from error

    def _made(self, size: int) -> tuple[StepRunner, DeviceFacts]:
        options, device = self._options, self._place.device
        files = Weights(self._source, self._dtype, device)
        weights = load_decoder_weights(self._config, files, bits=bits_of(options))
        pool = self._size_pool(weights, size)
        host = size_host(options, position_bytes=self._position_bytes)
        streams = self._place.streams()
        try:
            runner = self._runner(weights, pool, host, streams)
            graphs = self._warmed_up(runner)
        except BaseException:
            streams.close()
            raise
        return runner, self._facts(pool, host, graphs)

    def _warmed_up(self, runner: StepRunner) -> GraphFacts:
        """The graphs that were captured, if any."""
        device, budget_s = self._place.device, self._options.graph_capture_s
        if device.type == "cuda":
            # What fills memory runs on another stream than steps, which do not wait for it.
            torch.cuda.synchronize(device)
        if self._place.capture is None:
            return GraphFacts()
        runner.warm_up()
        if budget_s <= 0:
            return GraphFacts()
        return runner.capture_graphs(self._place.capture(), budget_s)

    def _size_pool(self, weights: DecoderWeights, size: int) -> PoolSize:
        options, place = self._options, self._place
        context, position_bytes = self._model.context_length, self._position_bytes
        if place.device.type != "cuda":
            return size_pool(options, context_length=context, position_bytes=position_bytes)
        profile = profile_memory(
            options, self._config, weights, place.ops, context=context, weight_bytes=size
        )
        return size_gpu_pool(
            options, profile, context_length=context, position_bytes=position_bytes
        )

    def _runner(
        self, weights: DecoderWeights, pool: PoolSize, host: HostMemory, streams: Streams
    ) -> StepRunner:
        options, place, config = self._options, self._place, self._config
        memory = partial(
            KVMemory, self._model.layers, block_size=options.block_size, dtype=self._kv_dtype
        )
        kv = memory(num_blocks=pool.num_blocks, device=place.device)
        host_kv = None
        if host.num_blocks:
            pinned = place.device.type == "cuda"
            there = torch.device("cpu")
            host_kv = memory(num_blocks=host.num_blocks, device=there, pinned=pinned)
        staging = Staging(streams)
        tables = DeviceTables(
            place.device,
            num_slots=options.num_slots,
            max_model_len=pool.max_model_len,
            block_size=options.block_size,
            num_blocks=pool.num_blocks,
            vocab_size=config.vocab_size,
            upload=staging.upload,
            processors=self._processors,
        )
        return StepRunner(
            PagedDecoder(config, weights, kv, place.ops, pool.max_model_len),
            tables,
            ops=place.ops,
            streams=streams,
            staging=staging,
            kv=kv,
            host=host_kv,
            max_num_tokens=options.max_num_batched_tokens,
        )

    def _facts(self, pool: PoolSize, host: HostMemory, graphs: GraphFacts) -> DeviceFacts:
        return DeviceFacts(
            model=Path(self._options.model).name,
            device=self._place.device.type,
            dtype=_name_of(self._dtype),
            vocab_size=self._config.vocab_size,
            max_model_len=pool.max_model_len,
            block_size=self._options.block_size,
            num_blocks=pool.num_blocks,
            eos_token_ids=self._config.eos_token_ids,
            host=host,
            logits_processors=frozenset(self._processors),
            num_graphs=len(graphs.sizes),
            capture_s=graphs.seconds,
        )
