"""Weights: a model's parameters by their Hugging Face names, each taken exactly once.

Whatever is missing, misshapen or left over is an error that names it, so that no model runs on
weights that were never read.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from ...messages import ModelError


class WeightSource(Protocol):
    """Where tensors come from: safetensors files or a GGUF file."""

    @property
    def source(self) -> str:
        """The files' name, for errors."""
        ...

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, out: Tensor) -> None:
        """Fill `out`, which has the tensor's shape and the wanted dtype."""
        ...


class Weights:
    """Hands out each tensor once and knows which were not asked for."""

    def __init__(
        self, source: WeightSource, dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        """Tensors come in this dtype, in the memory of this device; None: the processor's."""
        self.source = source
        self.device = device
        self._dtype = dtype
        self._left = set(source.names())

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

    def claim(self, name: str, *shape: int) -> None:
        """The caller reads this tensor itself. Raises ModelError as `take` does."""
        self.require(name, *shape)
        self._left.discard(name)

    def require(self, name: str, *shape: int) -> None:
        """Raise ModelError unless the files hold this tensor in this shape.

        Asked before any memory is: a corrupt configuration may announce a matrix of terabytes.
        """
        if name not in self._left:
            raise ModelError(f"{self.source.source} lacks tensor {name}")
        given = self.source.shape(name)
        if given != shape:
            raise ModelError(
                f"{self.source.source}: tensor {name} has shape {list(given)}; "
                f"the configuration says {list(shape)}"
            )

    def _read(self, name: str, out: Tensor) -> None:
        self.source.read(name, out)
        self._left.discard(name)

    def __contains__(self, name: str) -> bool:
        """Whether the files hold this tensor and nobody has taken it."""
        return name in self._left

    def finish(self) -> None:
        """Raise ModelError when the files hold tensors that the model has no place for."""
        if self._left:
            names = sorted(self._left)
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            raise ModelError(f"{self.source.source} holds unexpected tensors: {shown}")
