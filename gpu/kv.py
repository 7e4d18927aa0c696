"""PagedKV: the memory that keys and values live in. Numpy only, no torch.

What is kept in it, and in which type, is said by those who compute with it: `HalfKV` of the native
decoder and `TensorKV` of torch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..messages import Ints

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps for one position."""

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def size(self) -> int:
        """Numbers kept per position."""
        return self.num_heads * (self.key_dim + self.value_dim)


def bytes_per_position(layers: tuple[LayerShape, ...], item_bytes: int) -> int:
    """What one position costs in all layers together, in numbers of so many bytes."""
    return sum(layer.size for layer in layers) * item_bytes


class PagedKV:
    """Keys and values of every layer, one row per position of every block.

    The memory starts as zeros that the system maps in only when they are written, so a generous
    pool costs nothing until it is used.
    """

    def __init__(
        self, layers: tuple[LayerShape, ...], *, num_blocks: int, block_size: int, item_bytes: int
    ) -> None:
        self.layers = layers
        self.block_size = block_size
        self.num_blocks = num_blocks
        num_rows = num_blocks * block_size
        self.key_bytes: list[Bytes] = []  # per layer [num_rows, bytes of a position's keys]
        self.value_bytes: list[Bytes] = []
        for layer in layers:
            for dim, memory in (
                (layer.key_dim, self.key_bytes),
                (layer.value_dim, self.value_bytes),
            ):
                row_bytes = layer.num_heads * dim * item_bytes
                memory.append(np.zeros((num_rows, row_bytes), dtype=np.uint8))

    def touch(self) -> None:
        """Have the system map the first pages of every layer in; the first prompt need not wait
        for them. Changes nothing else, and may run beside the loading of weights."""
        for memory in (*self.key_bytes, *self.value_bytes):
            memory[:1] = 0

    def copy_blocks(self, blocks: Ints, source: "PagedKV", source_blocks: Ints) -> None:
        """Take over whole blocks of every layer from another memory of the same layers."""
        for own, other in zip(self._by_block(), source._by_block(), strict=True):
            own[blocks] = other[source_blocks]

    def _by_block(self) -> list[Bytes]:
        """Keys, then values, of every layer.  # [num_blocks, bytes of a block]"""
        memories = (*self.key_bytes, *self.value_bytes)
        return [memory.reshape(self.num_blocks, -1) for memory in memories]
