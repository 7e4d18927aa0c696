"""GGUF tensor data to float32: the common types here, vectorised; the rest by the gguf package."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...messages import ModelError

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a type packs numbers: `num_values` of them in each run of `num_bytes`."""

    name: str
    num_values: int
    num_bytes: int


_LAYOUTS = {
    F32: BlockLayout("F32", 1, 4),
    F16: BlockLayout("F16", 1, 2),
    BF16: BlockLayout("BF16", 1, 2),
    Q4_0: BlockLayout("Q4_0", 32, 18),
    Q4_1: BlockLayout("Q4_1", 32, 20),
    Q8_0: BlockLayout("Q8_0", 32, 34),
}


def layout_of(type_id: int) -> BlockLayout:
    """The layout of a ggml type. Raises ModelError for a number that is no type."""
    known = _LAYOUTS.get(type_id)
    if known is not None:
        return known
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        raise ModelError(f"tensor type {type_id} is unknown") from None
    num_values, num_bytes = GGML_QUANT_SIZES[kind]
    return BlockLayout(kind.name, num_values, num_bytes)


def dequantise(data: Bytes, type_id: int) -> Floats:
    """Flat bytes of whole blocks to flat float32 values."""
    if type_id == F32:
        return data.view(np.float32)
    if type_id == F16:
        return data.view(np.float16).astype(np.float32)
    if type_id == BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if type_id == Q8_0:
        return _q8_0(data.reshape(-1, 34))
    if type_id == Q4_0:
        return _q4(data.reshape(-1, 18)[:, 2:], _half(data, 18, 0), None)
    if type_id == Q4_1:
        return _q4(data.reshape(-1, 20)[:, 4:], _half(data, 20, 0), _half(data, 20, 2))
    return _by_package(data, type_id)


def _half(data: Bytes, stride: int, offset: int) -> Floats:
    """The float16 number at `offset` in every block.  # [num_blocks, 1]"""
    column = data.reshape(-1, stride)[:, offset : offset + 2]
    return np.ascontiguousarray(column).view(np.float16).astype(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    values = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    values *= _half(blocks.reshape(-1), 34, 0)
    return values.reshape(-1)


def _q4(nibbles: Bytes, scale: Floats, minimum: Floats | None) -> Floats:
    """16 bytes hold 32 numbers: the low halves are the first 16, the high halves the rest.

    Without a minimum the numbers are centred on 8.
    """
    values = np.empty((len(nibbles), 2, 16), dtype=np.float32)
    np.bitwise_and(nibbles, 15, out=values[:, 0], casting="unsafe", dtype=np.uint8)
    np.right_shift(nibbles, 4, out=values[:, 1], casting="unsafe", dtype=np.uint8)
    flat = values.reshape(-1, 32)
    if minimum is None:
        flat -= 8.0
        flat *= scale
    else:
        flat *= scale
        flat += minimum
    return flat.reshape(-1)


def _by_package(data: Bytes, type_id: int) -> Floats:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(type_id)
    layout = layout_of(type_id)
    try:
        values = dequantize(data.reshape(-1, layout.num_bytes), kind)
    except NotImplementedError:
        raise ModelError(f"tensor type {kind.name} cannot be dequantised") from None
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
