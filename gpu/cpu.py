"""CpuDevice: torch on the processor, one thread that runs steps in order."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import torch

from ..messages import (
    ConfigError,
    ModelError,
    SampleRows,
    StepaheadError,
    StepDone,
    StepFailed,
    StepPlan,
    WeightsLoaded,
)
from .binding import bind, bits_of, choose_kv_dtype
from .choices import auto_dtype
from .device import DeviceFacts, LoadedAddress, StepAddress
from .huge_pages import huge_pages
from .kv import PagedKV, bytes_per_position
from .loading.resolve import resolve_model
from .logits_processors import LogitsProcessors
from .masks import AwaitedMasks
from .memory import give_memory_back, size_host, size_pool
from .models.opening import open_model
from .options import DeviceOptions
from .processor import read_processor
from .reloading import load_other_weights
from .runner import StepRunner
from .slots import SlotTables

STEP_TOKENS = 512  # more are no quicker, and whoever comes meanwhile waits for them
FAIR_CHUNK = 160  # positions: 0.1 s of a small model on two cores in bfloat16, less as packed

Load: TypeAlias = Callable[[], tuple[StepRunner, DeviceFacts]]
"""Makes the model ready; runs on the device's own thread."""

Reload: TypeAlias = Callable[[StepRunner, DeviceFacts, str], DeviceFacts]
"""Gives the runner other weights, on the same thread, or raises and changes nothing."""

Post: TypeAlias = Callable[[Callable[[], None]], None]
"""Schedules a call on the event loop from another thread: `loop.call_soon_threadsafe`."""


class CpuDevice:
    """Runs steps one after the other on a thread of its own.

    A step that raises fails together with every step launched before its failure was delivered,
    because those build on it; later ones run. Every launch is answered once, in order.
    """

    def __init__(self, load: Load, post: Post, reload: Reload) -> None:
        """Wait until `load` is done on the device's thread; what it raises is raised here.

        All of torch's work in the process is then done by one team of OpenMP threads. A second
        team, as loading on another thread would leave behind, makes both go to sleep between
        operations: that costs a tenth of every step.
        """
        self._post = post
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._is_closing = threading.Event()
        self._masks = AwaitedMasks()
        opened: Future[DeviceFacts] = Future()
        worker = _Worker(load, opened, self._queue, post, self._is_closing, reload, self._masks)
        self._thread = threading.Thread(target=worker.run, name="stepahead-cpu", daemon=True)
        self._thread.start()
        try:
            self._facts = opened.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        """Queue a step; its result is posted to the event loop."""
        if self._is_closing.is_set():
            self._post(partial(done, StepFailed(plan.step, "the device is closed")))
        else:
            self._queue.put(_Launch(plan, done))

    def sample(self, masks: SampleRows) -> None:
        """Masks of held rows: the step that waits for them samples."""
        self._masks.add(masks)

    def load_weights(self, source: str, done: LoadedAddress) -> None:
        """Queue a reload behind what runs; what came of it is posted to the event loop."""

        def loaded(facts: DeviceFacts | None, error: str | None) -> None:
            self._facts = facts or self._facts
            done(WeightsLoaded(source, error))

        if self._is_closing.is_set():
            self._post(partial(done, WeightsLoaded(source, "the device is closed")))
        else:
            self._queue.put(_Reload(source, self._facts, loaded))

    def close(self) -> None:
        """Finish the step that runs, fail those that wait, and give the memory back."""
        self._is_closing.set()
        self._masks.close()
        self._queue.put(None)
        self._thread.join()
        give_memory_back()


class _Launch:
    """A step to run and where its result goes."""

    def __init__(self, plan: StepPlan, done: StepAddress) -> None:
        self.plan = plan
        self.done = done


class _Resume:
    """Stands in the queue where a failure became known: what follows does not build on it."""


class _Reload:
    """Weights to load, what is true of the model until then, and where to say what came of it."""

    def __init__(
        self,
        source: str,
        facts: DeviceFacts,
        loaded: Callable[[DeviceFacts | None, str | None], None],
    ) -> None:
        self.source = source
        self.facts = facts
        self.loaded = loaded


_Item: TypeAlias = _Launch | _Resume | _Reload | None


class _Worker:
    """The launch thread: owns the runner, and with it all memory, until it ends."""

    def __init__(
        self,
        load: Load,
        opened: "Future[DeviceFacts]",
        queue: "SimpleQueue[_Item]",
        post: Post,
        is_closing: threading.Event,
        reload: Reload,
        masks: AwaitedMasks,
    ) -> None:
        self._load = load
        self._opened = opened
        self._runner: StepRunner | None = None
        self._queue = queue
        self._post = post
        self._is_closing = is_closing
        self._reload = reload
        self._masks = masks
        self._fault: str | None = None  # why steps fail until the next _Resume

    def run(self) -> None:
        try:
            self._runner, facts = self._load()
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(facts)
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, _Resume):
                    self._fault = None
                elif isinstance(item, _Reload):
                    self._load_weights(item)
                else:
                    self._answer(item)
        finally:
            self._runner.close()
            self._runner = None

    def _answer(self, launch: _Launch) -> None:
        if self._is_closing.is_set():
            self._deliver(partial(launch.done, StepFailed(launch.plan.step, "the device closed")))
        elif self._fault is not None:
            self._skip(launch.plan)
            self._deliver(partial(launch.done, StepFailed(launch.plan.step, self._fault)))
        else:
            self._run(launch)

    def _run(self, launch: _Launch) -> None:
        assert self._runner is not None
        result: StepDone | StepFailed
        try:
            result = self._runner.run(launch.plan, self._masks.wait)
        except Exception as error:  # whatever the model raised is that step's result
            self._masks.forget(launch.plan)
            self._fault = f"step {launch.plan.step} failed: {type(error).__name__}: {error}"
            self._deliver(partial(self._fail, launch.done, launch.plan.step, self._fault))
        else:
            self._deliver(partial(launch.done, result))

    def _load_weights(self, item: _Reload) -> None:
        assert self._runner is not None
        facts, error = None, None
        try:
            if self._is_closing.is_set():
                raise ModelError("the device closed")
            facts = self._reload(self._runner, item.facts, item.source)
        except StepaheadError as mistake:
            error = str(mistake)
        except Exception as fault:  # whatever reading the files raised; the old weights are whole
            error = f"{item.source} cannot be loaded: {type(fault).__name__}: {fault}"
        self._deliver(partial(item.loaded, facts, error))

    def _skip(self, plan: StepPlan) -> None:
        assert self._runner is not None
        with suppress(Exception):  # a plan that does not fit the tables is answered as failed
            self._runner.skip(plan)
        self._masks.forget(plan)

    def _fail(self, done: StepAddress, step: int, fault: str) -> None:
        """On the event loop: from here on the launcher knows."""
        self._queue.put(_Resume())
        done(StepFailed(step, fault))

    def _deliver(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._post(call)


def open_cpu_device(
    options: DeviceOptions, post: Post, processors: LogitsProcessors | None = None
) -> CpuDevice:
    """Load a model and size its KV memory. Raises ModelError or ConfigError."""

    def reload(runner: StepRunner, facts: DeviceFacts, source: str) -> DeviceFacts:
        dtype = choose_dtype(options.dtype)
        return load_other_weights(runner, facts, options, Path(source), dtype)

    return CpuDevice(partial(_load, options, processors or {}), post, reload)


def _load(options: DeviceOptions, processors: LogitsProcessors) -> tuple[StepRunner, DeviceFacts]:
    if options.kv_dtype != "auto":
        raise ConfigError(
            f"kv_dtype is {options.kv_dtype!r}, which a GPU alone keeps; take 'auto', or "
            "device='cuda'"
        )
    dtype = choose_dtype(options.dtype)
    model = open_model(resolve_model(options.model), dtype, generic=options.generic)
    kv_dtype = choose_kv_dtype(model, options, dtype)
    position_bytes = bytes_per_position(model.layers, kv_dtype)
    pool = size_pool(options, context_length=model.context_length, position_bytes=position_bytes)
    host = size_host(options, position_bytes=position_bytes)
    try:
        paged_kv = partial(PagedKV, model.layers, block_size=options.block_size, dtype=kv_dtype)
        kv = paged_kv(num_blocks=pool.num_blocks)
        host_kv = paged_kv(num_blocks=host.num_blocks) if host.num_blocks else None
        tables = SlotTables(options.num_slots, pool.max_model_len, options.block_size)
    except (MemoryError, ValueError) as error:  # numpy: not to be had, or past what it can count
        raise ConfigError(
            f"{pool.num_blocks + host.num_blocks:,} KV blocks and {options.num_slots:,} slots of "
            f"{pool.max_model_len:,} positions do not fit the memory; ask for fewer"
        ) from error
    touching = threading.Thread(target=kv.touch, name="stepahead-touch", daemon=True)
    touching.start()
    try:
        with torch.inference_mode(), huge_pages():
            bound = bind(
                model,
                pool.max_model_len,
                kv,
                bits=bits_of(options),
                deterministic=options.deterministic,
            )
    finally:
        touching.join()
    facts = DeviceFacts(
        model=Path(options.model).name,
        device="cpu",
        dtype="quantised" if kv_dtype != dtype else str(dtype).removeprefix("torch."),
        vocab_size=model.vocab_size,
        max_model_len=pool.max_model_len,
        block_size=options.block_size,
        num_blocks=pool.num_blocks,
        eos_token_ids=model.eos_token_ids,
        host=host,
        step_tokens=STEP_TOKENS,
        fair_chunk=FAIR_CHUNK,
        logits_processors=frozenset(processors),
    )
    return StepRunner(bound, tables, kv, host_kv, processors), facts


def choose_dtype(name: str) -> torch.dtype:
    """The type to compute in; `auto` is what suits the processor."""
    if name == "auto":
        name = auto_dtype(read_processor()).value
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
