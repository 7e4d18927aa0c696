"""Matrices of a model, as a device multiplies them: plain, or in few bits.

In few bits a GGUF file's blocks stay as they are where they have no more bits than asked for, and
everything else is quantised as it is read, one fused matrix after the other.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..kernels.int4_linear import Int4Matrix
from ..kernels.int8_linear import Int8Matrix
from ..kernels.packed_linear import GROUP
from ..kernels.packing import (
    has_packing,
    joined,
    packed_blocks,
    quantised_4,
    quantised_8,
    reordered,
)
from ..loading.account import WeightSource
from ..loading.dequantise import Q8_0
from ..loading.gguf_weights import GgufWeights
from ..loading.weights import Weights
from ..native.packing import halves_apart
from ..options import DeviceOptions
from .quantised import Matrix

_EMBEDDING = "model.embed_tokens.weight"
_HEAD_BITS = 8  # at least: each token's logit is one row


def bits_of(options: DeviceOptions) -> int | None:
    """How many bits matrices have; None: those of the dtype."""
    return {"int8": 8, "int4": 4}.get(options.quantization)


class Matrices:
    """Hands out the matrices of one model."""

    def __init__(self, weights: Weights, *, bits: int | None, head_dim: int) -> None:
        self._weights = weights
        self._bits = bits
        self._head_dim = head_dim

    def take(self, sizes: Mapping[str, int], cols: int) -> Matrix:
        """Tensors [size, cols] below one another, in their order. Raises ModelError as
        `Weights.take` does."""
        if self._bits is None:
            return self._weights.take_joined(sizes, cols)
        for name, size in sizes.items():
            self._weights.require(name, size, cols)
        packed = self._packed(tuple(sizes), self._bits)
        if packed is None:
            return _quantised(self._weights.take_joined(sizes, cols), self._bits)
        for name, size in sizes.items():
            self._weights.claim(name, size, cols)
        return packed

    def take_head(self, name: str, rows: int, cols: int) -> Matrix:
        """The output matrix, in 8 bits at least, unless its file has fewer."""
        if self._bits is None:
            return self._weights.take(name, rows, cols)
        self._weights.require(name, rows, cols)
        packed = self._packed((name,), _HEAD_BITS)
        if packed is None:
            return _quantised(self._weights.take(name, rows, cols), _HEAD_BITS)
        self._weights.claim(name, rows, cols)
        return packed

    def tied_head(self, embedding: Tensor) -> Matrix:
        """The embedding as an output matrix."""
        if self._bits is None:
            return embedding
        packed = self._packed((_EMBEDDING,), _HEAD_BITS)
        return _quantised(embedding, _HEAD_BITS) if packed is None else packed

    def _packed(self, names: tuple[str, ...], bits: int) -> Int4Matrix | Int8Matrix | None:
        """The file's own blocks, where all of these have some, of one kind and of so few bits."""
        file = self._weights.source
        if not isinstance(file, GgufWeights):
            return None
        tensors = [file.tensor(name) for name in names]
        kinds = {tensor.type_id for tensor in tensors}
        is_8 = Q8_0 in kinds
        if not all(map(has_packing, kinds)) or (is_8 and (len(kinds) > 1 or bits < 8)):
            return None
        parts: list[Int4Matrix | Int8Matrix] = []
        for name, tensor in zip(names, tensors, strict=True):
            data = torch.from_numpy(tensor.data.copy()).to(self._weights.device)
            part = packed_blocks(tensor.type_id, data, *tensor.shape)
            if file.is_interleaved(name):
                order = torch.from_numpy(halves_apart(tensor.shape[0], self._head_dim))
                part = reordered(part, order.to(data.device))
            parts.append(part)
        return joined(parts)


def _quantised(values: Tensor, bits: int) -> Matrix:
    """Rows that are no whole number of groups stay what they are."""
    if values.shape[1] % GROUP:
        return values
    return quantised_4(values) if bits == 4 else quantised_8(values)


def weight_bytes(source: WeightSource, dtype: torch.dtype, bits: int | None) -> int:
    """What a model's weights take; about, since a file's own blocks may be smaller."""
    shapes = {name: torch.Size(source.shape(name)) for name in source.names()}
    plain = dtype.itemsize * 8.0
    size = 0.0
    for name, shape in shapes.items():
        is_head = name == "lm_head.weight"
        is_plain = bits is None or len(shape) < 2 or name == _EMBEDDING
        size += shape.numel() * (plain if is_plain else _bits_each(_HEAD_BITS if is_head else bits))
    if bits is not None and "lm_head.weight" not in shapes and _EMBEDDING in shapes:
        size += shapes[_EMBEDDING].numel() * _bits_each(_HEAD_BITS)  # beside the embedding
    return int(size / 8)


def _bits_each(bits: int | None) -> float:
    """With a float16 scale and minimum for 32 of 4 bits, or a scale for 32 of 8 bits at most."""
    return 5.0 if bits == 4 else 8.5
