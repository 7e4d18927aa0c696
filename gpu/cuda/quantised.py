"""Products with a matrix that is plain or of few bits, by what is fastest for so many rows.

Few rows: a kernel that widens the weights as it reads them. Many: the weights are widened once,
into memory, and torch multiplies. The choice depends on shapes alone, so a graph may keep it.
"""

from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor

from ..kernels.int4_linear import (
    Int4Matrix,
    int4_linear,
    int4_linear_reference,
    int4_widened,
)
from ..kernels.int8_linear import (
    Int8Matrix,
    int8_linear,
    int8_linear_reference,
    int8_widened,
)
from ..kernels.packed_linear import MOST_ROWS

Matrix: TypeAlias = Tensor | Int4Matrix | Int8Matrix
"""A weight [out_features, in_features]."""


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` of x [rows, in_features] → [rows, out_features], by kernels."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    if isinstance(weight, Int4Matrix):
        if len(x) <= MOST_ROWS:
            return int4_linear(x, weight, bias)
        return F.linear(x, int4_widened(weight, x.dtype), bias)
    if len(x) <= MOST_ROWS:
        return int8_linear(x, weight, bias)
    return F.linear(x, int8_widened(weight, x.dtype), bias)


def linear_reference(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """The same by the kernels' references, anywhere."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    if isinstance(weight, Int4Matrix):
        return int4_linear_reference(x, weight, bias)
    return int8_linear_reference(x, weight, bias)


def parts_of(weight: Matrix) -> tuple[Tensor, ...]:
    """The tensors that it is in."""
    return (weight,) if isinstance(weight, Tensor) else (weight.words, weight.scales)


def shape_of(weight: Matrix) -> tuple[int, int]:
    """[out_features, in_features]."""
    if isinstance(weight, Tensor):
        return weight.shape[0], weight.shape[1]
    return weight.out_features, weight.in_features
