"""KVMemory: keys and values of every layer, on a device or in pinned host memory."""

import torch
from torch import Tensor

from ...messages import ConfigError
from ..kernels.attention_parts import capability_of, keeps_e4m3
from ..kv import LayerShape
from ..options import DeviceOptions
from .pinned import pinned_zeros


def kv_dtype_of(options: DeviceOptions, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What keys and values are kept in by a model of this dtype. Raises ConfigError where the
    device cannot convert it."""
    if options.kv_dtype == "auto":
        return dtype
    if not keeps_e4m3(device):
        raise ConfigError(
            "kv_dtype 'fp8' needs a GPU of compute capability 8.9 or newer (RTX 40, H100 and "
            f"later), and this one has {capability_of(device) / 10}; take 'auto'"
        )
    return torch.float8_e4m3fn


class KVMemory:
    """One row per position of every block, as the kernels address it.

    Nothing is cleared for a new owner: attention reads positions that were written, and no others.
    """

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        pinned: bool = False,
    ) -> None:
        self.layers = layers
        self.block_size = block_size
        self.num_blocks = num_blocks
        num_rows = num_blocks * block_size

        shapes = [(num_rows, layer.num_heads, layer.key_dim) for layer in layers]
        shapes += [(num_rows, layer.num_heads, layer.value_dim) for layer in layers]
        if pinned:
            assert len(set(shapes)) == 1, "blocks are moved between memories of one shape"
            made = pinned_zeros(len(shapes), shapes[0], dtype)
        else:
            made = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        self.keys, self.values = made[: len(layers)], made[len(layers) :]

    @property
    def memories(self) -> tuple[Tensor, ...]:
        """Keys of every layer, then values."""
        return (*self.keys, *self.values)
