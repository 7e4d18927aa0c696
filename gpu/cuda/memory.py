"""How much KV a GPU holds: sized from what is free once the weights are in place."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ...messages import ConfigError
from ..memory import PoolSize, size_pool
from ..options import DeviceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """What a GPU's memory looks like before the KV memory is taken, in bytes."""

    total: int
    free: int  # with the weights in place
    weights: int
    work: int = 0  # the most that a step takes beyond them
    graphs: int = 0  # what captured graphs will take


def size_gpu_pool(
    options: DeviceOptions,
    profile: MemoryProfile,
    *,
    context_length: int,
    position_bytes: int,
) -> PoolSize:
    """Blocks from `num_blocks`, else from `kv_memory`, else from what is free.

    `gpu_memory_fraction` of the whole memory is ours to use; what is free beyond the rest, and
    beyond what steps and graphs take, goes to KV, but no more than every slot at full length would
    fill. Raises ConfigError where that does not hold what is asked for, or a single block.
    """
    block_bytes = options.block_size * position_bytes
    room = _room(options, profile)
    asked = options.num_blocks
    if asked is None and options.kv_memory is not None:
        asked = options.kv_memory // block_bytes
    least = max(asked or 1, -(-(options.max_model_len or 1) // options.block_size))
    if least * block_bytes > room:
        raise ConfigError(_too_little(options, profile, least * block_bytes))
    if asked is None:
        longest = min(context_length, options.max_model_len or context_length)
        most = -(-longest // options.block_size) * options.num_slots
        options = replace(options, num_blocks=min(room // block_bytes, most))
    return size_pool(options, context_length=context_length, position_bytes=position_bytes)


def check_weights(options: DeviceOptions, weights: int, *, free: int, total: int) -> None:
    """Raise ConfigError where a model's weights alone do not fit, before any of them is loaded.

    All in bytes; `free` is what is free now.
    """
    profile = MemoryProfile(total=total, free=free - weights, weights=weights)
    if _room(options, profile) < 0:
        raise ConfigError(_too_little(options, profile))


def _room(options: DeviceOptions, profile: MemoryProfile) -> int:
    kept_back = profile.total - int(profile.total * options.gpu_memory_fraction)
    return profile.free - kept_back - profile.work - profile.graphs


def _too_little(options: DeviceOptions, profile: MemoryProfile, kv_bytes: int = 0) -> str:
    """What is needed beside what is free and what there is, in words."""
    needed = profile.weights + profile.work + profile.graphs + kv_bytes
    parts = {
        "weights": profile.weights,
        "steps": profile.work,
        "graphs": profile.graphs,
        "keys and values": kv_bytes,
    }
    told = ", ".join(f"{_gb(count)} of {name}" for name, count in parts.items() if count)
    free = profile.free + profile.weights
    return (
        f"{options.model} needs {_gb(needed)} of the GPU's memory ({told}); {_gb(free)} are free "
        f"of {_gb(profile.total)}, and gpu_memory_fraction {options.gpu_memory_fraction:g} keeps "
        f"{_gb(profile.total * (1 - options.gpu_memory_fraction))} back. Take a smaller model, "
        "less max_model_len or max_num_batched_tokens, or a larger fraction"
    )


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


def free_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU that nobody has, and all there are; torch keeps nothing for later then."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free, total


def measure_work(device: torch.device, run: Callable[[], object]) -> int:
    """The most bytes that `run` had in use at once on a GPU, beyond what was in use before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
