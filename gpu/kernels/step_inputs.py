"""What a step computes, made where it is computed: ids, positions and rows from tables by slot."""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import Build

_CONSTANTS = {"BLOCK": 256}
_OPTIONS = {"num_warps": 4}
_COUNTS = ("num_rows", "num_tokens", "padded_tokens", "padded_rows", "rounds")


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Tokens of all rows one after the other, then padding; all of int32.

    `first` gives the same memory for other sizes, so a graph that was captured over a size finds
    the next step of that size where it looks.
    """

    token_ids: Tensor  # [tokens]; 0 is padding's
    positions: Tensor  # [tokens]; 0
    token_slots: Tensor  # [tokens]; -1
    starts: Tensor  # [rows + 1] the first token of each row, and the end
    lengths: Tensor  # [rows] positions a row has, this step's included; 0
    slots: Tensor  # [rows]; -1

    @classmethod
    def empty(cls, num_tokens: int, num_rows: int, device: torch.device) -> Self:
        sizes = (num_tokens, num_tokens, num_tokens, num_rows + 1, num_rows, num_rows)
        return cls(*(torch.zeros(size, dtype=torch.int32, device=device) for size in sizes))

    def first(self, num_tokens: int, num_rows: int) -> "StepTensors":
        return StepTensors(
            self.token_ids[:num_tokens],
            self.positions[:num_tokens],
            self.token_slots[:num_tokens],
            self.starts[: num_rows + 1],
            self.lengths[:num_rows],
            self.slots[:num_rows],
        )


OUT_TYPES = dict.fromkeys(
    (
        *("out_ids_ptr", "out_positions_ptr", "out_token_slots_ptr"),
        *("out_starts_ptr", "out_lengths_ptr", "out_slots_ptr"),
    ),
    "*i32",
)
"""Of the arguments that take StepTensors, as `Build` has types."""


@triton.jit(do_not_specialize=_COUNTS)
def step_inputs_kernel(
    slots_ptr,
    positions_ptr,
    starts_ptr,
    tokens_ptr,
    out_ids_ptr,
    out_positions_ptr,
    out_token_slots_ptr,
    out_starts_ptr,
    out_lengths_ptr,
    out_slots_ptr,
    tokens_stride,
    num_rows,
    num_tokens,
    padded_tokens,
    padded_rows,
    rounds,
    BLOCK: tl.constexpr,
):
    """Each program has as many tokens as rows; `rounds` halvings find any row."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)

    is_row = place < num_rows
    slot = tl.load(slots_ptr + place, mask=is_row, other=-1)
    position = tl.load(positions_ptr + place, mask=is_row, other=0)
    start = tl.load(starts_ptr + place, mask=is_row, other=num_tokens)
    end = tl.load(starts_ptr + place + 1, mask=is_row, other=num_tokens)
    tl.store(out_starts_ptr + place, start, mask=place <= padded_rows)
    tl.store(out_slots_ptr + place, slot, mask=place < padded_rows)
    tl.store(out_lengths_ptr + place, position + end - start, mask=place < padded_rows)

    # The last row that begins at or before a token: rows have at least one.
    is_token = place < num_tokens
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.zeros([BLOCK], tl.int32) + num_rows
    for _ in range(rounds):
        middle = (low + high) // 2
        begins = tl.load(starts_ptr + middle, mask=is_token, other=0)
        low = tl.where(begins <= place, middle, low)
        high = tl.where(begins <= place, high, middle)
    slot = tl.load(slots_ptr + low, mask=is_token, other=-1)
    position = tl.load(positions_ptr + low, mask=is_token, other=0)
    position += tl.where(is_token, place - tl.load(starts_ptr + low, mask=is_token, other=0), 0)
    at = tokens_ptr + slot.to(tl.int64) * tokens_stride + position
    token_id = tl.load(at, mask=is_token, other=0)
    tl.store(out_ids_ptr + place, token_id, mask=place < padded_tokens)
    tl.store(out_positions_ptr + place, position, mask=place < padded_tokens)
    tl.store(out_token_slots_ptr + place, slot, mask=place < padded_tokens)


def step_inputs(
    slots: Tensor,
    positions: Tensor,
    starts: Tensor,
    tokens: Tensor,
    num_tokens: int,
    out: StepTensors,
) -> None:
    """Fill `out` for rows that compute tokens from `positions` on.

    Slots and positions are [rows], starts [rows + 1], all of int32; each row has at least a token,
    `num_tokens` is the last start, and `out` may be longer. Tokens by slot are
    [slots, positions] of int32: those that were given as those that were sampled.
    """
    num_rows, padded = len(slots), len(out.token_ids)
    step_inputs_kernel[(triton.cdiv(max(padded, len(out.starts)), _CONSTANTS["BLOCK"]),)](
        slots,
        positions,
        starts,
        tokens,
        out.token_ids,
        out.positions,
        out.token_slots,
        out.starts,
        out.lengths,
        out.slots,
        tokens.stride(0),
        num_rows,
        num_tokens,
        padded,
        len(out.slots),
        num_rows.bit_length(),
        **_CONSTANTS,
        **_OPTIONS,
    )


def step_inputs_reference(
    slots: Tensor,
    positions: Tensor,
    starts: Tensor,
    tokens: Tensor,
    num_tokens: int,
    out: StepTensors,
) -> None:
    num_rows = len(slots)
    counts = starts.diff()
    rows = torch.repeat_interleave(torch.arange(num_rows), counts)
    at = positions[rows] + torch.arange(num_tokens) - starts[rows]
    for tensor, values, padding in (
        (out.token_ids, tokens[slots[rows].long(), at.long()], 0),
        (out.positions, at, 0),
        (out.token_slots, slots[rows], -1),
        (out.starts, starts, num_tokens),
        (out.lengths, positions + counts, 0),
        (out.slots, slots, -1),
    ):
        tensor.fill_(padding)
        tensor[: len(values)] = values


BUILDS = (
    Build(
        name="any rows",
        kernel=step_inputs_kernel,
        types={
            **dict.fromkeys(("slots_ptr", "positions_ptr", "starts_ptr", "tokens_ptr"), "*i32"),
            **OUT_TYPES,
            **dict.fromkeys(("tokens_stride", *_COUNTS), "i32"),
        },
        constants=_CONSTANTS,
        aligned=("slots_ptr", "positions_ptr", "starts_ptr", "out_ids_ptr", "out_positions_ptr"),
        options=_OPTIONS,
        moves_wide=False,  # a token is a word
    ),
)
