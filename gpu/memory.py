"""How much KV a device keeps: from the options, or a bounded share of the memory that is free."""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..messages import ConfigError
from .host import HostMemory, count_host_blocks
from .options import DeviceOptions

_SHARE = 0.25  # of free memory
_CEILING = 4 * 2**30  # bytes
_CONTEXTS = 3  # sequences at full length that there is room for, where memory allows
_POSITIONS = 24_576  # or this many, where contexts are short

# What decides between moving a block and computing it again: orders of magnitude of a few cores.
# Moving wins by far, unless others share most of what would be moved.
_COPY_RATE = 2e9  # bytes per second from memory to memory
_PREFILL_RATE = 1_000  # positions per second


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many blocks there are and how long a sequence may become in them."""

    num_blocks: int
    max_model_len: int  # positions


def size_pool(options: DeviceOptions, *, context_length: int, position_bytes: int) -> PoolSize:
    """Blocks from `num_blocks`, else from `kv_memory`, else what a process may take unasked.

    That is room for three sequences at full length or 24,576 positions, whichever is more, but no
    more than every slot at full length would fill, a quarter of free memory, or 4 GiB: memory once
    touched stays taken, since finished sequences are kept for those that begin like them. A
    sequence may become as long as the model and the pool allow, or as the option says.
    """
    asked = options.max_model_len
    if asked is not None and asked > context_length:
        raise ConfigError(
            f"max_model_len is {asked}, but the model's context is {context_length} positions"
        )
    limit = min(context_length, options.max_model_len or context_length)
    block_bytes = options.block_size * position_bytes
    if options.num_blocks is not None:
        num_blocks = options.num_blocks
    elif options.kv_memory is not None:
        num_blocks = options.kv_memory // block_bytes
    else:
        num_blocks = min(
            -(-limit // options.block_size) * options.num_slots,
            -(-max(_CONTEXTS * limit, _POSITIONS) // options.block_size),
            min(int(free_memory() * _SHARE), _CEILING) // block_bytes,
        )
    if num_blocks < 1:
        given = options.kv_memory if options.kv_memory is not None else "too little free memory"
        raise ConfigError(
            f"a block of {options.block_size} positions takes {block_bytes} bytes of KV memory; "
            f"given: {given}"
        )
    room = num_blocks * options.block_size
    if asked is not None and asked > room:
        raise ConfigError(
            f"max_model_len is {asked}, but the KV memory holds {room} positions "
            f"({num_blocks * block_bytes} bytes); ask for less, or give kv_memory"
        )
    return PoolSize(num_blocks, min(limit, room))


def size_host(options: DeviceOptions, *, position_bytes: int) -> HostMemory:
    """Host blocks as the options say. Raises ConfigError where the memory is not there."""
    block_bytes = options.block_size * position_bytes
    count = count_host_blocks(options.num_host_blocks, options.swap_memory, block_bytes)
    wanted, free = count * block_bytes, free_memory()
    if wanted > free:
        raise ConfigError(
            f"{count:,} blocks of host memory take {wanted:,} bytes, and {free:,} are free; "
            "give less swap_memory"
        )
    return HostMemory(
        num_blocks=count, block_copy_s=block_bytes / _COPY_RATE, token_s=1 / _PREFILL_RATE
    )


def free_memory() -> int:
    """Bytes that this process may still use: what the system has, within its control group."""
    free = _system_free()
    limit, used = (
        _read_number("/sys/fs/cgroup/memory.max"),
        _read_number("/sys/fs/cgroup/memory.current"),
    )
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0))
    return free


def _system_free() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def give_memory_back() -> None:
    """Return what was freed to the system, where the C library would keep it for later."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
