"""CpuDevice: one thread of the processor that runs steps in order."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..messages import ConfigError, StepFailed
from .binding import ITEM_BYTES, bind, bits_of, choose_kv_dtype, make_kv
from .choices import auto_dtype
from .device import DeviceFacts, StepAddress
from .huge_pages import new_memory
from .kv import bytes_per_position
from .loading.resolve import resolve_model
from .logits_processors import LogitsProcessors
from .memory import give_memory_back, size_host, size_pool
from .models.opening import open_model
from .native.decoder import NativeDecoder
from .options import DeviceOptions
from .pace import USUAL
from .processor import read_processor
from .queued import DeviceThread, Launch, Post, QueuedDevice, Resume, told
from .reloading import load_other_weights
from .runner import StepRunner
from .slots import SlotTables


class CpuDevice(QueuedDevice[StepRunner]):
    """Runs steps one after the other on a thread of its own.

    A step that raises fails together with every step launched before its failure was delivered,
    because those build on it; later ones run. Every launch is answered once, in order.
    """

    def __init__(
        self,
        load: Callable[[], tuple[StepRunner, DeviceFacts]],
        post: Post,
        reload: Callable[[StepRunner, DeviceFacts, str], DeviceFacts],
    ) -> None:
        """Wait until `load` is done on the device's thread; what it raises is raised here.

        All of torch's work in the process is then done by one team of OpenMP threads. A second
        team, as loading on another thread would leave behind, makes both go to sleep between
        operations: that costs a tenth of every step.
        """
        super().__init__(_Worker(load, reload, post), "stepahead-cpu")


class _Worker(DeviceThread[StepRunner]):
    _settling: threading.Thread | None = None  # once a step has run: its answer did not wait

    def launch(self, runner: StepRunner, item: Launch) -> None:
        plan = item.plan
        if self.is_closing.is_set():
            self.deliver(partial(item.done, StepFailed(plan.step, "the device closed")))
        elif self.fault is not None:
            with suppress(Exception):  # a plan that does not fit the tables is answered as failed
                runner.skip(plan)
            self.masks.forget(plan)
            self.deliver(partial(item.done, StepFailed(plan.step, self.fault)))
        else:
            self._run(runner, item)

    def _run(self, runner: StepRunner, item: Launch) -> None:
        plan = item.plan
        try:
            result = runner.run(plan, self.masks.wait)
        except Exception as error:  # whatever the model raised is that step's result
            self.masks.forget(plan)
            self.fault = told(plan, error)
            self.deliver(partial(self._fail, item.done, StepFailed(plan.step, self.fault)))
        else:
            self.deliver(partial(item.done, result))
            if self._settling is None:
                self._settling = threading.Thread(
                    target=runner.settle, name="stepahead-settle", daemon=True
                )
                self._settling.start()

    def _fail(self, done: StepAddress, failed: StepFailed) -> None:
        """On the event loop: from here on the launcher knows."""
        self.queue.put(Resume())
        done(failed)

    def end(self, runner: StepRunner) -> None:
        if self._settling is not None:
            self._settling.join()
        runner.close()

    def give_memory_back(self) -> None:
        give_memory_back()


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
    position_bytes = bytes_per_position(model.layers, ITEM_BYTES[kv_dtype])
    pool = size_pool(options, context_length=model.context_length, position_bytes=position_bytes)
    host = size_host(options, position_bytes=position_bytes)
    try:
        paged_kv = partial(make_kv, model.layers, kv_dtype, block_size=options.block_size)
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
        with new_memory() as weights:
            bound = bind(
                model,
                pool.max_model_len,
                kv,
                bits=bits_of(options),
                deterministic=options.deterministic,
            )
    finally:
        touching.join()
    pace = bound.pace if isinstance(bound, NativeDecoder) else USUAL
    facts = DeviceFacts(
        model=Path(options.model).name,
        device="cpu",
        dtype="quantised" if kv_dtype != dtype else dtype,
        vocab_size=model.vocab_size,
        max_model_len=pool.max_model_len,
        block_size=options.block_size,
        num_blocks=pool.num_blocks,
        eos_token_ids=model.eos_token_ids,
        host=host,
        step_tokens=pace.step_tokens,
        fair_chunk=pace.fair_chunk,
        doubling_context=pace.doubling_context,
        logits_processors=frozenset(processors),
    )
    return StepRunner(bound, tables, kv, host_kv, processors, weights), facts


def choose_dtype(name: str) -> str:
    """The type to compute in; `auto` is what suits the processor."""
    return auto_dtype(read_processor()).value if name == "auto" else name
