"""Pinned memory for many tensors of one shape, of which little is wasted.

Torch asks the driver for a power of two bytes whenever it wants pinned memory: a tensor of a little
more than a gigabyte takes two. Several together come near to a power of two.
"""

import math

import torch
from torch import Tensor


def pinned_zeros(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """So many tensors, in pinned memory."""
    return joint_zeros(count, shape, dtype, pinned=True)


def joint_zeros(
    count: int, shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool
) -> list[Tensor]:
    """The same in memory that need not be pinned."""
    found: list[Tensor] = []
    for part in shares(count, math.prod(shape) * dtype.itemsize):
        found += torch.zeros((part, *shape), dtype=dtype, pin_memory=pinned).unbind()
    return found


def shares(count: int, size: int) -> list[int]:
    """How many of `count` pieces of `size` bytes to ask for at once, time after time."""
    found = []
    while count:
        found.append(max(range(1, count + 1), key=lambda part: (_use(part * size), part)))
        count -= found[-1]
    return found


def _use(num_bytes: int) -> float:
    """The share of what is taken for so many bytes that is asked for."""
    return num_bytes / (1 << (num_bytes - 1).bit_length()) if num_bytes else 1.0
