"""Build: a kernel in a configuration that it ships with, and what its machine code must show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What a launch would compile, said without tensors."""

    name: str  # what the table calls it: the shape it is for
    kernel: Any  # the function under triton.jit
    types: Mapping[str, str]  # of the arguments that are no constants: "*bf16", "i32", …
    constants: Mapping[str, object]
    aligned: tuple[str, ...]  # pointers and strides that are multiples of 16
    options: Mapping[str, object] = field(default_factory=dict)  # num_warps, num_stages
    capabilities: tuple[int, ...] = (80, 90)
    uses_tensor_cores: bool = False
    uses_warp_groups: bool = False  # those that only sm_90 has, twice as fast
    moves_wide: bool = True  # reads or writes 128 bits at a time
    loads_ahead: bool = False  # in every loop, what is loaded next while it computes


def wide_enough(size: int) -> int:
    """The least power of two that holds `size`: what a kernel's tile must have."""
    return 1 << max(size - 1, 0).bit_length()
