"""Sums of what programs that share a product each made of it, in one order: the same bits each run.

Few rows leave a product too few programs to fill a GPU, so each takes only some of the inputs.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import Build

_CONSTANTS = {"BLOCK": 1024}
_OPTIONS = {"num_warps": 4}


@triton.jit
def split_sums_kernel(
    parts_ptr, bias_ptr, out_ptr, size, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Program (row, column block)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    place = parts_ptr + row * size + column
    stride = tl.num_programs(0).to(tl.int64) * size
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(place + split * stride, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * size + column, total.to(out_ptr.dtype.element_ty), mask=inside)


def split_sums(parts: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Parts [splits, rows, size] of float32, plus the bias [size], into out [rows, size]."""
    splits, rows, size = parts.shape
    if rows and size:
        split_sums_kernel[(rows, triton.cdiv(size, _CONSTANTS["BLOCK"]))](
            parts,
            parts if bias is None else bias,  # never read where there is none
            out,
            size,
            SPLITS=splits,
            HAS_BIAS=bias is not None,
            **_CONSTANTS,
            **_OPTIONS,
        )
    return out


def split_sums_reference(parts: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    total = parts.sum(dim=0)
    return out.copy_(total if bias is None else total + bias.float())


def splits_for(programs: int, most: int, device: torch.device) -> int:
    """Into how many parts to cut a product of so many programs: a power of two, `most` at most, by
    which each multiprocessor has two programs. Depends on shapes alone, so a graph may keep it."""
    wanted = 2 * _num_multiprocessors(device)
    splits = 1
    while splits * programs < wanted and splits * 2 <= most:
        splits *= 2
    return splits


@cache
def _num_multiprocessors(device: torch.device) -> int:
    """Of the GPU; in the interpreter few, since each program costs."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


BUILDS = tuple(
    Build(
        name=f"{splits} splits{', bias' if has_bias else ''}",
        kernel=split_sums_kernel,
        types={"parts_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16", "size": "i32"},
        constants={**_CONSTANTS, "SPLITS": splits, "HAS_BIAS": has_bias},
        aligned=("parts_ptr", "bias_ptr", "out_ptr", "size"),
        options=_OPTIONS,
    )
    for splits, has_bias in ((4, True), (8, False))
)
