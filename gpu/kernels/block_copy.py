"""Copies of whole KV blocks in all layers at once: copy-on-write, and swaps with other memory."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import Build

_CONSTANTS = {"WORDS": 1024}
_OPTIONS = {"num_warps": 4}
_ALIGNMENT = 16  # bytes: what one thread moves at a time


@triton.jit
def block_copy_kernel(
    target_addresses_ptr,
    source_addresses_ptr,
    target_blocks_ptr,
    source_blocks_ptr,
    block_words,
    WORDS: tl.constexpr,
):
    """Program (pair of blocks, memory, part of the block), in words of 32 bits."""
    target = tl.load(target_blocks_ptr + tl.program_id(0)).to(tl.int64)
    source = tl.load(source_blocks_ptr + tl.program_id(0)).to(tl.int64)
    if target < 0:
        return
    target_address = tl.load(target_addresses_ptr + tl.program_id(1))
    source_address = tl.load(source_addresses_ptr + tl.program_id(1))
    words = tl.pointer_type(tl.int32)
    # Addresses out of a table: nothing else tells the compiler that they are aligned.
    target_ptr = tl.multiple_of(target_address.to(words), 16)
    source_ptr = tl.multiple_of(source_address.to(words), 16)
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    inside = word < block_words
    moved = tl.load(source_ptr + source * block_words + word, mask=inside)
    tl.store(target_ptr + target * block_words + word, moved, mask=inside)


class BlockCopier:
    """Copies blocks between two sets of memories that a device can address.

    Memories are keys and values of every layer, [rows, kv_heads, dim], and all of one block size in
    bytes; the two sets may be the same one, and either may be pinned host memory. Their addresses
    are looked up once: they must stay where they are for as long as this lives.
    """

    def __init__(
        self, targets: Sequence[Tensor], sources: Sequence[Tensor], *, block_size: int
    ) -> None:
        """Raises ValueError if blocks differ in bytes or are not of 16 bytes or a multiple."""
        row_bytes = {memory[:1].numel() * memory.element_size() for memory in (*targets, *sources)}
        if len(row_bytes) != 1 or len(targets) != len(sources):
            raise ValueError(
                f"blocks are copied between memories of equal rows, not of {sorted(row_bytes)} "
                f"bytes a row in {len(targets)} and {len(sources)} memories"
            )
        self._block_bytes = row_bytes.pop() * block_size
        self._memories = (tuple(targets), tuple(sources))  # whose addresses are used
        addresses = [[memory.data_ptr() for memory in side] for side in self._memories]
        if self._block_bytes % _ALIGNMENT or any(
            address % _ALIGNMENT for side in addresses for address in side
        ):
            raise ValueError(
                f"a block of {self._block_bytes} bytes is not aligned to {_ALIGNMENT} bytes"
            )
        self._addresses = torch.tensor(addresses, dtype=torch.int64)

    def to(self, device: torch.device) -> "BlockCopier":
        """Keep the addresses where the kernel runs."""
        self._addresses = self._addresses.to(device)
        return self

    def copy(self, targets: Tensor, sources: Tensor) -> None:
        """Copy blocks [pairs] of int32 onto others, in no order: no block may be both, and none a
        target twice. A target of -1 is padding."""
        words = self._block_bytes // 4
        grid = (len(targets), self._addresses.shape[1], triton.cdiv(words, _CONSTANTS["WORDS"]))
        if len(targets):
            block_copy_kernel[grid](
                self._addresses[0],
                self._addresses[1],
                targets,
                sources,
                words,
                **_CONSTANTS,
                **_OPTIONS,
            )


def copy_blocks_reference(
    target_memories: Sequence[Tensor],
    source_memories: Sequence[Tensor],
    targets: Tensor,
    sources: Tensor,
    *,
    block_size: int,
) -> None:
    is_real = targets >= 0
    for into, out_of in zip(target_memories, source_memories, strict=True):
        blocks = into.view(-1, block_size, *into.shape[1:])
        others = out_of.view(-1, block_size, *out_of.shape[1:])
        blocks[targets[is_real].long()] = others[sources[is_real].long()]


BUILDS = (
    Build(
        name="any layers",
        kernel=block_copy_kernel,
        types={
            "target_addresses_ptr": "*i64",
            "source_addresses_ptr": "*i64",
            "target_blocks_ptr": "*i32",
            "source_blocks_ptr": "*i32",
            "block_words": "i32",
        },
        constants=_CONSTANTS,
        aligned=("block_words",),
        options=_OPTIONS,
    ),
)
