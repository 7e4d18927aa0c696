"""HalfKV: keys and values in float16, in a layout that the library alone knows within a block."""

import numpy as np
from numpy.typing import NDArray

from ..kv import LayerShape, PagedKV

Halves = NDArray[np.float16]


class HalfKV(PagedKV):
    """Paged memory of the native decoder."""

    def __init__(self, layers: tuple[LayerShape, ...], *, num_blocks: int, block_size: int) -> None:
        super().__init__(layers, num_blocks=num_blocks, block_size=block_size, item_bytes=2)
        self.keys: list[Halves] = [memory.view(np.float16) for memory in self.key_bytes]
        self.values: list[Halves] = [memory.view(np.float16) for memory in self.value_bytes]
