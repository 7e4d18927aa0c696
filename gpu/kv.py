"""PagedKV: the memory that keys and values live in, and how large it may be."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..messages import Ints

ITEM_BYTES = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2, torch.float8_e4m3fn: 1}


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


def bytes_per_position(layers: tuple[LayerShape, ...], dtype: torch.dtype) -> int:
    """What one position costs in all layers together."""
    return sum(layer.size for layer in layers) * ITEM_BYTES[dtype]


class PagedKV:
    """Keys and values of every layer, one row per position of every block.

    The memory starts as zeros that the system maps in only when they are written, so a generous
    pool costs nothing until it is used.
    """

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.layers = layers
        self.dtype = dtype
        self.block_size = block_size
        self.num_blocks = num_blocks
        num_rows = num_blocks * block_size
        self.keys: list[Tensor] = []  # per layer [num_rows, kv_heads, key_dim]
        self.values: list[Tensor] = []  # per layer [num_rows, kv_heads, value_dim]
        for layer in layers:
            self.keys.append(_zeros((num_rows, layer.num_heads, layer.key_dim), dtype))
            self.values.append(_zeros((num_rows, layer.num_heads, layer.value_dim), dtype))

    def touch(self) -> None:
        """Have the system map the first pages of every layer in; the first prompt need not wait
        for them. Changes nothing else, and may run beside the loading of weights."""
        for memory in (*self.keys, *self.values):
            memory[:1].zero_()

    def write(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Store `key` and `value` [num_tokens, kv_heads, dim] at `rows` [num_tokens]."""
        self.keys[layer].index_copy_(0, rows, key)
        self.values[layer].index_copy_(0, rows, value)

    def copy_blocks(self, blocks: Ints, source: "PagedKV", source_blocks: Ints) -> None:
        """Take over whole blocks of every layer from another memory of the same layers.

        By numpy, which copies on this thread: torch would wake its team for every layer.
        """
        for own, other in zip(self._by_block(), source._by_block(), strict=True):
            own[blocks] = other[source_blocks]

    def _by_block(self) -> Iterator[NDArray[np.uint8]]:
        """Keys, then values, of every layer as bytes.  # [num_blocks, bytes of a block]"""
        for memory in (*self.keys, *self.values):
            row_bytes = int(np.prod(memory.shape[1:])) * memory.element_size()
            data = memory.view(torch.uint8).numpy()
            yield data.reshape(self.num_blocks, self.block_size * row_bytes)

    def clear(self, rows: Tensor) -> None:
        """Zero rows of every layer.

        Attention reads whole blocks and masks what lies past a sequence's end; what an earlier
        owner left there must at least be numbers, since 0 times NaN is NaN.
        """
        for memory in (*self.keys, *self.values):
            memory.index_copy_(0, rows, memory.new_zeros((len(rows), *memory.shape[1:])))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that are not touched: numpy asks the system for pages, torch would fill them."""
    count = int(np.prod(shape))
    memory = torch.from_numpy(np.zeros(count * ITEM_BYTES[dtype], dtype=np.uint8))
    return memory.view(dtype).view(shape)
