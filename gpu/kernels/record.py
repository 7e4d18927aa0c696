"""Sampled tokens go into the table by slot, where the next step finds them."""

import triton
import triton.language as tl
from torch import Tensor

from .build import Build

_CONSTANTS = {"BLOCK": 256}
_OPTIONS = {"num_warps": 4}


@triton.jit(do_not_specialize=("count",))
def record_kernel(
    sampled_ptr, slots_ptr, positions_ptr, tokens_ptr, tokens_stride, count, BLOCK: tl.constexpr
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    slot = tl.load(slots_ptr + place, mask=inside, other=-1)
    position = tl.load(positions_ptr + place, mask=inside, other=0)
    token_id = tl.maximum(tl.load(sampled_ptr + place, mask=inside, other=0), 0)
    at = tokens_ptr + slot.to(tl.int64) * tokens_stride + position
    tl.store(at, token_id, mask=slot >= 0)


def record(sampled: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """Write sampled ids [samples] to the positions of slots [samples] that they are for, in tokens
    by slot [slots, positions]; all of int32. A failed sample (below 0) leaves 0, and slot -1 is
    padding. No place is written twice."""
    if len(sampled):
        record_kernel[(triton.cdiv(len(sampled), _CONSTANTS["BLOCK"]),)](
            sampled,
            slots,
            positions,
            tokens,
            tokens.stride(0),
            len(sampled),
            **_CONSTANTS,
            **_OPTIONS,
        )


def record_reference(sampled: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
    is_real = slots >= 0
    tokens[slots[is_real].long(), positions[is_real].long()] = sampled[is_real].clamp(min=0)


BUILDS = (
    Build(
        name="any rows",
        kernel=record_kernel,
        types={
            **dict.fromkeys(("sampled_ptr", "slots_ptr", "positions_ptr", "tokens_ptr"), "*i32"),
            **dict.fromkeys(("tokens_stride", "count"), "i32"),
        },
        constants=_CONSTANTS,
        aligned=("sampled_ptr", "slots_ptr", "positions_ptr"),
        options=_OPTIONS,
        moves_wide=False,
    ),
)
