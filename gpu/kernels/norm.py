"""Residual addition and RMSNorm in one pass over the hidden state."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import Build, wide_enough


@triton.jit
def add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token per program, its whole row in registers. Leaves the sum in the residual."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    place = residual_ptr + token * residual_stride + column
    total = x + tl.load(place, mask=inside, other=0.0).to(tl.float32)
    stored = total.to(residual_ptr.dtype.element_ty)
    tl.store(place, stored, mask=inside)
    # What later layers read is the stored sum, so the norm is of that one too.
    total = stored.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, 0) / SIZE + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = total * scale * weight
    tl.store(
        out_ptr + token * out_stride + column, normed.to(out_ptr.dtype.element_ty), mask=inside
    )


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add x [tokens, size] to the residual in place and give the sum's norm.  # like x

    Rows may lie apart (any stride between them), the numbers of a row next to each other.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    tokens, size = x.shape
    if tokens:
        add_rms_norm_kernel[(tokens,)](
            x,
            residual,
            weight,
            out,
            x.stride(0),
            residual.stride(0),
            out.stride(0),
            eps,
            **_constants(size),
            num_warps=_num_warps(size),
        )
    return out


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual.copy_(x.float() + residual.float())
    total = residual.float()
    scale = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + eps)
    return (total * scale * weight.float()).to(x.dtype)


def _constants(size: int) -> dict[str, int]:
    return {"SIZE": size, "BLOCK": wide_enough(size)}


def _num_warps(size: int) -> int:
    return 8 if size >= 4096 else 4


BUILDS = tuple(
    Build(
        name=f"{size} wide",
        kernel=add_rms_norm_kernel,
        types={
            "x_ptr": "*bf16",
            "residual_ptr": "*bf16",
            "weight_ptr": "*bf16",
            "out_ptr": "*bf16",
            "x_stride": "i32",
            "residual_stride": "i32",
            "out_stride": "i32",
            "eps": "fp32",
        },
        constants=_constants(size),
        aligned=(
            *("x_ptr", "residual_ptr", "weight_ptr", "out_ptr"),
            *("x_stride", "residual_stride", "out_stride"),
        ),
        options={"num_warps": _num_warps(size)},
    )
    for size in (1024, 4096)
)
