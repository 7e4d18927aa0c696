"""Weights: a model's parameters as tensors by their Hugging Face names, each taken exactly once."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .account import Account, WeightSource


class Weights(Account):
    """Hands out each tensor once and knows which were not asked for."""

    def __init__(
        self, source: WeightSource, dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        """Tensors come in this dtype, in the memory of this device; None: the processor's."""
        super().__init__(source)
        self.device = device
        self._dtype = dtype

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor in the wanted dtype. Raises ModelError when it is missing or misshapen."""
        self.require(name, *shape)
        out = torch.empty(shape, dtype=self._dtype, device=self.device)
        self._read(name, out)
        return out

    def take_joined(self, sizes: Mapping[str, int], *rest: int) -> Tensor:
        """Several tensors [size, *rest] below one another, read straight to their places."""
        for name, size in sizes.items():
            self.require(name, size, *rest)
        shape = sum(sizes.values()), *rest
        out = torch.empty(shape, dtype=self._dtype, device=self.device)
        begin = 0
        for name, size in sizes.items():
            self._read(name, out[begin : begin + size])
            begin += size
        return out

    def _read(self, name: str, out: Tensor) -> None:
        self.source.read(name, out)
        self._left.discard(name)
