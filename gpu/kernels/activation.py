"""SiLU of the gate times the up projection, from the output of their fused matrix."""

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .build import Build

_CONSTANTS = {"BLOCK": 1024}
_OPTIONS = {"num_warps": 4}


@triton.jit
def silu_mul_kernel(gate_up_ptr, out_ptr, gate_up_stride, size, BLOCK: tl.constexpr):
    """Program (token, column block)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    row = gate_up_ptr + token * gate_up_stride
    gate = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + size + column, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + token * size + column, product.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [tokens, 2 * size], rows at any stride → [tokens, size]."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((tokens, size))
    if tokens and size:
        grid = (tokens, triton.cdiv(size, _CONSTANTS["BLOCK"]))
        silu_mul_kernel[grid](gate_up, out, gate_up.stride(0), size, **_CONSTANTS, **_OPTIONS)
    return out


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


BUILDS = (
    Build(
        name="any width",
        kernel=silu_mul_kernel,
        types={
            "gate_up_ptr": "*bf16",
            "out_ptr": "*bf16",
            "gate_up_stride": "i32",
            "size": "i32",
        },
        constants=_CONSTANTS,
        aligned=("gate_up_ptr", "out_ptr", "gate_up_stride", "size"),
        options=_OPTIONS,
    ),
)
