"""A backend: the device and the tokenizer that an engine runs on."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from ..gpu.device import STEP_TOKENS, Device, DeviceFacts, ReloadableDevice
from ..messages import ConfigError, SamplingParams
from .batching import Drafter
from .config import EngineConfig, step_tokens
from .grammars import GrammarService
from .recommended import recommended_params
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..gpu.logits_processors import LogitsProcessors

NUM_SIMULATED_BLOCKS = 4_096
SIMULATED_CONTEXT = 8_192


@dataclass(frozen=True, slots=True)
class Backend:
    """What an engine runs on; the engine that is given one closes its device."""

    device: Device
    tokenizer: Tokenizer
    default_params: SamplingParams  # what the model's makers recommend
    drafter: Drafter | None = None  # guesses tokens that the device verifies
    grammars: GrammarService | None = None  # what structured requests must follow; None: made
    # from the tokenizer


async def open_backend(
    config: EngineConfig, num_slots: int, processors: "LogitsProcessors | None" = None
) -> Backend:
    """Load the model, away from the event loop. Raises ModelError or ConfigError."""
    loop = asyncio.get_running_loop()
    if config.device == "simulated":
        return simulated_backend(config, num_slots, loop, processors)
    path = await anyio.to_thread.run_sync(_resolve, config.model)
    opened: list[Device] = []  # so that it is closed also if this task is cancelled meanwhile

    def open_device() -> None:
        opened.append(_open_device(config, path, num_slots, loop, processors))

    # Imports hold every thread up, and loading weights does not: the tokenizer goes with these.
    await anyio.to_thread.run_sync(_import_device)
    tokenizing = asyncio.ensure_future(anyio.to_thread.run_sync(_load_tokenizer, path))
    try:
        await anyio.to_thread.run_sync(open_device)
        return Backend(opened[0], await tokenizing, recommended_params(config.model, path))
    except BaseException:
        tokenizing.cancel()
        for device in opened:
            device.close()
        raise


def weights_source(device: Device, model: str | Path) -> str:
    """What a device is to load. Raises ConfigError where it cannot load anything, ModelError where
    there is no such model; nobody has been disturbed then."""
    facts = device.facts
    if not isinstance(device, ReloadableDevice):
        raise ConfigError(
            f"the {facts.device} device cannot load other weights; start another engine with them"
        )
    return str(model) if facts.device == "simulated" else str(_resolve(model))


def simulated_backend(
    config: EngineConfig,
    num_slots: int,
    loop: asyncio.AbstractEventLoop,
    processors: "LogitsProcessors | None" = None,
) -> Backend:
    """The oracle behind a toy tokenizer, on the loop's own time."""
    from ..gpu.host import count_host_blocks
    from ..gpu.oracle import Oracle
    from ..gpu.simulated import SimulatedDevice, StepTime
    from .text.toy import ToyTokenizer

    tokenizer = ToyTokenizer()
    num_blocks, step_time = config.num_blocks or NUM_SIMULATED_BLOCKS, StepTime()
    block_bytes = int(step_time.kv_bytes_per_token) * config.block_size
    host_blocks = count_host_blocks(config.num_host_blocks, config.swap_memory, block_bytes)
    facts = DeviceFacts(
        model="simulated",
        device="simulated",
        dtype="none",
        vocab_size=tokenizer.vocab_size,
        max_model_len=min(
            config.max_model_len or SIMULATED_CONTEXT, num_blocks * config.block_size
        ),
        block_size=config.block_size,
        num_blocks=num_blocks,
        eos_token_ids=tokenizer.eos_token_ids,
        host=step_time.host_memory(host_blocks, config.block_size),
        logits_processors=frozenset(processors or ()),
    )
    oracle = Oracle(eos_token_id=min(tokenizer.eos_token_ids), eos_every=64)
    try:
        device = SimulatedDevice(
            facts,
            num_slots,
            loop.call_later,
            oracle=oracle,
            step_time=step_time,
            processors=processors,
        )
    except MemoryError as error:
        raise ConfigError(
            f"{num_blocks:,} blocks and {num_slots:,} slots do not fit into memory; use fewer"
        ) from error
    return Backend(device, tokenizer, SamplingParams())


def _resolve(model: str | Path) -> Path:
    from ..gpu.loading.resolve import resolve_model

    return resolve_model(model)


def _import_device() -> None:
    from ..gpu import cpu  # noqa: F401


def _load_tokenizer(path: Path) -> Tokenizer:
    from .text.loading import load_tokenizer

    return load_tokenizer(path)


def _open_device(
    config: EngineConfig,
    path: Path,
    num_slots: int,
    loop: asyncio.AbstractEventLoop,
    processors: "LogitsProcessors | None",
) -> Device:
    from ..gpu.options import DeviceOptions

    options = DeviceOptions(
        model=str(path),
        dtype=config.dtype,
        quantization=config.quantization,
        kv_dtype=config.kv_dtype,
        deterministic=config.deterministic,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        kv_memory=config.kv_memory,
        gpu_memory_fraction=config.gpu_memory_fraction,
        graph_capture_s=config.graph_capture_s,
        num_host_blocks=config.num_host_blocks,
        swap_memory=config.swap_memory,
        max_model_len=config.max_model_len,
        num_slots=num_slots,
        max_num_batched_tokens=step_tokens(config, STEP_TOKENS),
    )

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    is_auto = config.device == "auto"
    if config.device == "cuda" or (is_auto and not processors and _has_gpu_for(config, path)):
        from ..gpu.cuda.finding import require_gpu

        require_gpu()  # before Triton is looked for
        from ..gpu.cuda.opening import open_cuda_device

        return open_cuda_device(options, post, processors=processors)
    from ..gpu.cpu import open_cpu_device

    return open_cpu_device(options, post, processors)


def _has_gpu_for(config: EngineConfig, path: Path) -> bool:
    """Whether there is a GPU that runs this model, with all that is asked for."""
    from ..gpu.cuda.driver import has_driver
    from ..gpu.models.opening import has_fast_decoder

    if config.deterministic or not has_driver() or not has_fast_decoder(path):
        return False
    from ..gpu.cuda.finding import find_gpu, why_no_gpu

    return why_no_gpu(find_gpu()) is None
