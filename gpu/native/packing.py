"""Weights for the native decoder: packed as their file has them, or quantised on the way.

Q4_0, Q4_1 and Q8_0 keep every bit of what the file says. Everything else becomes 8 bits with a
scale for 32 numbers, which costs about 0.3% of a weight's size, or 4 bits where that is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..loading.dequantise import Q4_0, Q4_1, Q8_0
from .library import Matrix, load_library

GROUP = 32  # numbers that share a scale
LANES = 16  # rows of a panel
_BITS = {Q4_0: 4, Q4_1: 4, Q8_0: 8}

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """Rows of quantised numbers as ggml packs them."""

    kind: int  # ggml's number of the type
    rows: int
    cols: int
    data: Bytes

    @cached_property
    def address(self) -> int:
        """Where the data is; numpy takes a while to say."""
        return self.data.ctypes.data


class Packed:
    """A matrix in the library's layout; it owns the memory that `matrix` points to."""

    def __init__(self, parts: Sequence[tuple[Blocks, NDArray[np.int32]]]) -> None:
        """Parts are stacked; each comes with the source row of every packed row. All have the
        same number of bits and of columns."""
        bits, cols = _BITS[parts[0][0].kind], parts[0][0].cols
        rows = sum(len(order) for _, order in parts)
        row_bytes, row_scales = cols * bits // 8, cols // GROUP * 2  # with a minimum to each
        self._quants: Bytes = _aligned(rows * row_bytes)
        self._scales = np.zeros(rows * row_scales, dtype=np.uint16)
        self.bias: Floats | None = None
        self.num_bytes = self._quants.nbytes + self._scales.nbytes
        self._shape = (rows, cols, bits)
        self.fits_tiles = True  # whether matrix tiles can take numbers of such a size
        pack = load_library().stepahead_pack
        quants, scales = self._quants.ctypes.data, self._scales.ctypes.data
        for blocks, order in parts:
            assert (_BITS[blocks.kind], blocks.cols) == (bits, cols)
            count = len(order)
            asked = blocks.kind, count, cols, blocks.address, order.ctypes.data, quants, scales
            self.fits_tiles &= bool(pack(*asked))
            quants += count * row_bytes
            scales += count * row_scales * self._scales.itemsize

    @property
    def matrix(self) -> Matrix:
        bias = None if self.bias is None else self.bias.ctypes.data
        return Matrix(*self._shape, self._quants.ctypes.data, self._scales.ctypes.data, bias)


def in_order(rows: int) -> NDArray[np.int32]:
    """Rows as they are, and the last one again until a panel is full."""
    padded = -(-rows // LANES) * LANES
    return np.minimum(np.arange(padded), rows - 1).astype(np.int32)


def halves_apart(rows: int, head_dim: int) -> NDArray[np.int32]:
    """Per head, rows 0, 2, 4, … come first, then rows 1, 3, 5, …"""
    heads = np.arange(rows).reshape(-1, head_dim // 2, 2)
    return heads.transpose(0, 2, 1).reshape(-1).astype(np.int32)


def quantised_8(values: Floats) -> Blocks:
    """Numbers [rows, cols] in 8 bits, with one scale for 32 neighbours (ggml's Q8_0)."""
    rows, cols = values.shape
    groups = values.reshape(-1, GROUP)
    scales = np.abs(groups).max(axis=1) / 127
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    data = np.empty((len(groups), 2 + GROUP), dtype=np.uint8)
    data[:, :2] = scales.astype(np.float16)[:, None].view(np.uint8)
    data[:, 2:] = np.rint(groups * inverse[:, None]).astype(np.int8).view(np.uint8)
    return Blocks(Q8_0, rows, cols, data.reshape(-1))


def quantised_4(values: Floats) -> Blocks:
    """Numbers [rows, cols] in 4 bits, with one scale and minimum for 32 neighbours (Q4_1)."""
    rows, cols = values.shape
    groups = values.reshape(-1, GROUP)
    minimum = groups.min(axis=1).astype(np.float16)
    scales = ((groups.max(axis=1) - minimum) / 15).astype(np.float16)
    wide, low = scales.astype(np.float32)[:, None], minimum.astype(np.float32)[:, None]
    steps = np.divide(groups - low, wide, out=np.zeros_like(groups), where=wide > 0)
    nibbles = np.clip(np.rint(steps), 0, 15).astype(np.uint8)
    data = np.empty((len(groups), 4 + GROUP // 2), dtype=np.uint8)
    data[:, :2] = scales[:, None].view(np.uint8)
    data[:, 2:4] = minimum[:, None].view(np.uint8)
    data[:, 4:] = nibbles[:, : GROUP // 2] | nibbles[:, GROUP // 2 :] << 4
    return Blocks(Q4_1, rows, cols, data.reshape(-1))


def _aligned(size: int) -> Bytes:
    """Memory that begins at a cache line."""
    memory = np.empty(size + 63, dtype=np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size]
