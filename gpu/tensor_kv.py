"""TensorKV: keys and values as torch reads and writes them."""

import torch
from torch import Tensor

from .kv import Bytes, LayerShape, PagedKV


class TensorKV(PagedKV):
    """Paged memory seen as tensors of one dtype."""

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(
            layers, num_blocks=num_blocks, block_size=block_size, item_bytes=dtype.itemsize
        )

        def seen(memory: Bytes, heads: int, dim: int) -> Tensor:
            return torch.from_numpy(memory.reshape(-1)).view(dtype).view(-1, heads, dim)

        self.keys: list[Tensor] = [  # per layer [num_rows, kv_heads, key_dim]
            seen(memory, layer.num_heads, layer.key_dim)
            for memory, layer in zip(self.key_bytes, layers, strict=True)
        ]
        self.values: list[Tensor] = [  # per layer [num_rows, kv_heads, value_dim]
            seen(memory, layer.num_heads, layer.value_dim)
            for memory, layer in zip(self.value_bytes, layers, strict=True)
        ]

    def write(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Store `key` and `value` [num_tokens, kv_heads, dim] at `rows` [num_tokens]."""
        self.keys[layer].index_copy_(0, rows, key)
        self.values[layer].index_copy_(0, rows, value)

    def clear(self, rows: Tensor) -> None:
        """Zero rows of every layer.

        Attention reads whole blocks and masks what lies past a sequence's end; what an earlier
        owner left there must at least be numbers, since 0 times NaN is NaN.
        """
        for memory in (*self.keys, *self.values):
            memory.index_copy_(0, rows, memory.new_zeros((len(rows), *memory.shape[1:])))
