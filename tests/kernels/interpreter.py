"""Runs kernels on the CPU in Triton's interpreter; import this before any kernel.

Three things there are not as on a GPU and are put right: products of bfloat16 matrices multiply the
bit patterns, float32 is cut off to bfloat16 instead of rounded to nearest, and what becomes e4m3 is
rounded with no regard to ties and carries, and wraps where it is too large.
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

assert "triton" not in sys.modules or "TRITON_INTERPRET" in os.environ, (
    "Triton is loaded as a compiler already, and can be one thing only in a process"
)
os.environ["TRITON_INTERPRET"] = "1"  # read wherever a function becomes a kernel
pytest.importorskip("triton", reason="Triton is not installed: the extra `gpu` brings it")

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from stepahead.gpu.cuda import ops, quantised, sampler, sampling_tables  # noqa: E402
from stepahead.gpu.kernels import (  # noqa: E402
    activation,
    adjust,
    block_copy,
    cache_write,
    cuts,
    decode_inputs,
    gumbel,
    int4_linear,
    int8_linear,
    machine_code,
    norm,
    packing,
    paged_attention,
    record,
    row_updates,
    sampling_line,
    split_decode,
    split_sums,
    step_inputs,
)
from stepahead.gpu.kernels.attention_parts import PagedRows  # noqa: E402
from stepahead.gpu.kernels.checks import wish_rows  # noqa: E402

__all__ = [
    "DTYPES",
    "PagedRows",
    "activation",
    "adjust",
    "assert_close",
    "block_copy",
    "cache_write",
    "cuts",
    "decode_inputs",
    "gumbel",
    "int4_linear",
    "int8_linear",
    "machine_code",
    "norm",
    "ops",
    "packing",
    "paged_attention",
    "quantised",
    "random_tensor",
    "record",
    "row_updates",
    "sampler",
    "sampling_line",
    "sampling_tables",
    "split_decode",
    "split_sums",
    "step_inputs",
    "wish_rows",
]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ULP = {torch.float32: 2.0**-20, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def random_tensor(seed: int, *shape: int, dtype: torch.dtype, padding: int = 0) -> Tensor:
    """Normal numbers; rows of the first dimension lie `padding` numbers further apart, which hold
    NaN: whoever reads them shows it."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.full((shape[0], int(np.prod(shape[1:])) + padding), float("nan"), dtype=dtype)
    values = whole[:, : whole.shape[1] - padding]
    values.copy_(torch.randn(values.shape, generator=generator))
    return whole.as_strided(shape, (whole.shape[1], *torch.empty(shape[1:]).stride()))


def assert_close(given: Tensor, expected: Tensor, ulps: float = 1.0) -> None:
    """Equal up to some units in the last place of numbers about as large as 1, or their own."""
    bound = ulps * _ULP[expected.dtype]
    torch.testing.assert_close(given, expected, rtol=bound, atol=bound)


_TORCH = {
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float32: torch.float32,
}
_TORCH_WORDS = {tl.float8e4nv: torch.uint8, tl.bfloat16: torch.uint16}  # what numpy lacks


def _install_casts() -> None:
    builder: Any = interpreter.InterpreterBuilder
    create_dot: Callable[..., Any] = builder.create_dot
    create_fp_to_fp: Callable[..., Any] = builder.create_fp_to_fp
    cast_impl: Callable[..., Any] = builder.cast_impl

    def rounding_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if tl.bfloat16 not in (a.dtype.scalar, b.dtype.scalar):
            return create_dot(self, a, b, d, *options)
        product = np.matmul(_widened(a), _widened(b), dtype=np.float32)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    def rounding_cast(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_narrowed(source.data), tl.bfloat16)
        return cast_impl(self, source, target)

    def e4m3_cast(self: Any, source: Any, target: Any, *options: Any) -> Any:
        kinds = source.dtype.scalar, target.scalar
        if tl.float8e4nv not in kinds:
            return create_fp_to_fp(self, source, target, *options)
        numbers = torch.from_numpy(np.ascontiguousarray(source.data)).view(_TORCH[kinds[0]])
        if kinds[1] == tl.float8e4nv:
            numbers = numbers.float().clamp(-448, 448)  # the instruction saturates
        cast = numbers.to(_TORCH[kinds[1]]).view(_TORCH_WORDS.get(kinds[1], _TORCH[kinds[1]]))
        return interpreter.TensorHandle(cast.numpy(), kinds[1])

    builder.create_dot, builder.cast_impl = rounding_dot, rounding_cast
    builder.create_fp_to_fp = e4m3_cast


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def _narrowed(values: Any) -> Any:
    """To nearest, ties to even, as integers."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16))


def _install_indices() -> None:
    """Triton 3.6 makes bounds of loops of arrays that hold one number, which numpy refuses since
    2.4; later versions take the number out."""
    patch_tensor: Callable[..., Any] = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch


_install_casts()
if version("triton").startswith("3.6"):
    _install_indices()
