"""Linear: a weight bound to the fastest multiplication that the processor has for its type."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

_BATCH_HINT = 64  # rows the packed layout is chosen for; it serves 1 to 2,048 about equally well


class Linear:
    """`x @ weight.T + bias`, with the weight repacked where that is faster.

    bfloat16 weights go through oneDNN in its own layout, and only that copy is kept. float32
    weights stay plain: repacking gains nothing there.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._packed = weight.dtype == torch.bfloat16 and can_pack()
        self._weight = _pack(weight) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [tokens, in_features] → [tokens, out_features]."""
        if self._packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, "none", [], ""
            )
            return out
        return F.linear(x, self._weight, self._bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual + self(x)`, in one pass where that is possible."""
        if self._packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                x, residual, self._weight, self._bias, "add"
            )
            return out
        if self._bias is None:
            return torch.addmm(residual, x, self._weight.t())
        return residual + F.linear(x, self._weight, self._bias)


@cache
def can_pack() -> bool:
    """Whether torch's build and the processor have oneDNN's packed product for bfloat16."""
    if not (torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return False
    try:
        _pack(torch.zeros(16, 16, dtype=torch.bfloat16))
    except RuntimeError:  # without AVX-512 or AVX-NE-CONVERT
        return False
    return True


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _BATCH_HINT)
    return packed
