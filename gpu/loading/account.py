"""Account: which of a model's tensors were taken, each exactly once. Knows no torch.

Whatever is missing, misshapen or left over is an error that names it, so that no model runs on
weights that were never read.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from ...messages import Floats, ModelError

if TYPE_CHECKING:
    from torch import Tensor


class WeightSource(Protocol):
    """Where tensors come from: safetensors files or a GGUF file."""

    @property
    def source(self) -> str:
        """The files' name, for errors."""
        ...

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def floats(self, name: str) -> Floats:
        """The values of a tensor, the caller's own."""
        ...

    def read(self, name: str, out: "Tensor") -> None:
        """Fill `out`, which has the tensor's shape and the wanted dtype."""
        ...


class Account:
    """Knows which tensors of a source nobody has asked for yet."""

    def __init__(self, source: WeightSource) -> None:
        self.source = source
        self._left = set(source.names())

    def claim(self, name: str, *shape: int) -> None:
        """The caller reads this tensor. Raises ModelError when it is missing or misshapen."""
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

    def __contains__(self, name: str) -> bool:
        """Whether the files hold this tensor and nobody has taken it."""
        return name in self._left

    def finish(self) -> None:
        """Raise ModelError when the files hold tensors that the model has no place for."""
        if self._left:
            names = sorted(self._left)
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            raise ModelError(f"{self.source.source} holds unexpected tensors: {shown}")
