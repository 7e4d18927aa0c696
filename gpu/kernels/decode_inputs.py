"""What a step of one token a row computes, made of a fixed place that the host writes: for graphs.

`step_inputs` makes the same of rows of any length, for which the host says how many there are. Here
rows that a step has not are padding in what the host sent, so nothing but memory tells of them.
"""

import triton
import triton.language as tl
from torch import Tensor

from .build import Build
from .step_inputs import OUT_TYPES, StepTensors

FIELDS = 4  # of a row: slot, position, where in its line of the block table a block goes, the block

_CONSTANTS = {"BLOCK": 256}
_OPTIONS = {"num_warps": 4}


@triton.jit(do_not_specialize=("num_rows", "table_stride"))
def decode_inputs_kernel(
    sent_ptr,
    tokens_ptr,
    block_table_ptr,
    out_ids_ptr,
    out_positions_ptr,
    out_token_slots_ptr,
    out_starts_ptr,
    out_lengths_ptr,
    out_slots_ptr,
    tokens_stride,
    table_stride,
    num_rows,
    BLOCK: tl.constexpr,
):
    """As many rows to a program as BLOCK; each is one token."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num_rows
    slot = tl.load(sent_ptr + place, mask=inside, other=-1)
    position = tl.load(sent_ptr + num_rows + place, mask=inside, other=-1)
    column = tl.load(sent_ptr + 2 * num_rows + place, mask=inside, other=-1)
    block = tl.load(sent_ptr + 3 * num_rows + place, mask=inside, other=-1)
    line = slot.to(tl.int64)
    at = tokens_ptr + line * tokens_stride + position
    tl.store(out_ids_ptr + place, tl.load(at, mask=slot >= 0, other=0), mask=inside)
    tl.store(out_positions_ptr + place, tl.maximum(position, 0), mask=inside)
    tl.store(out_token_slots_ptr + place, slot, mask=inside)
    tl.store(out_starts_ptr + place, place, mask=place <= num_rows)
    tl.store(out_lengths_ptr + place, position + 1, mask=inside)
    tl.store(out_slots_ptr + place, slot, mask=inside)
    has_block = (slot >= 0) & (column >= 0)
    tl.store(block_table_ptr + line * table_stride + column, block, mask=has_block)


def decode_inputs(sent: Tensor, tokens: Tensor, block_table: Tensor, out: StepTensors) -> None:
    """Fill `out` for rows of one token each, and put blocks into the tables of those that have one.

    Sent is flat [FIELDS, rows], tokens by slot [slots, positions], the block table [slots, blocks],
    all of int32; `out` has as many rows. Slot and position -1 are padding, and place -1 no block.
    """
    num_rows = len(out.slots)
    decode_inputs_kernel[(triton.cdiv(num_rows + 1, _CONSTANTS["BLOCK"]),)](
        sent,
        tokens,
        block_table,
        out.token_ids,
        out.positions,
        out.token_slots,
        out.starts,
        out.lengths,
        out.slots,
        tokens.stride(0),
        block_table.stride(0),
        num_rows,
        **_CONSTANTS,
        **_OPTIONS,
    )


def decode_inputs_reference(
    sent: Tensor, tokens: Tensor, block_table: Tensor, out: StepTensors
) -> None:
    slots, positions, columns, blocks = sent.view(FIELDS, -1)
    is_real = slots >= 0
    out.token_ids.zero_()
    out.token_ids[is_real] = tokens[slots[is_real].long(), positions[is_real].long()]
    out.positions.copy_(positions.clamp(min=0))
    out.token_slots.copy_(slots)
    out.starts.copy_(slots.new_ones(len(slots) + 1).cumsum(0) - 1)
    out.lengths.copy_(positions + 1)
    out.slots.copy_(slots)
    has_block = is_real & (columns >= 0)
    block_table[slots[has_block].long(), columns[has_block].long()] = blocks[has_block]


BUILDS = (
    Build(
        name="any rows",
        kernel=decode_inputs_kernel,
        types={
            **dict.fromkeys(("sent_ptr", "tokens_ptr", "block_table_ptr"), "*i32"),
            **OUT_TYPES,
            **dict.fromkeys(("tokens_stride", "table_stride", "num_rows"), "i32"),
        },
        constants=_CONSTANTS,
        aligned=("sent_ptr", "tokens_ptr", "block_table_ptr", "out_ids_ptr", "out_positions_ptr"),
        options=_OPTIONS,
        moves_wide=False,  # a token is a word
    ),
)
