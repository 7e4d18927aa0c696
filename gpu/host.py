"""Host memory beside a device's own: how many blocks it holds, and what moving them costs."""

from dataclasses import dataclass

from ..messages import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What is known of the memory that KV blocks can be moved to; none by default."""

    num_blocks: int = 0
    block_copy_s: float = 0.0  # seconds to move a block, one way
    token_s: float = 0.0  # seconds to compute a position of a prompt, as an alternative


NO_HOST_MEMORY = HostMemory()


def count_host_blocks(num_blocks: int | None, memory: int | None, block_bytes: int) -> int:
    """`num_blocks` where it is given, else what fits into `memory` bytes; 0 for neither.

    Raises ConfigError where the memory is too little for a block.
    """
    if num_blocks is not None:
        return num_blocks
    if not memory:
        return 0
    if memory < block_bytes:
        raise ConfigError(
            f"swap_memory is {memory:,} bytes, and a KV block takes {block_bytes:,}; "
            "give room for one, or 0 for none"
        )
    return memory // block_bytes
