"""StepInputs: what the layers of a model need for one step, made once per step from a plan.

Everything here is numpy on whole columns; torch tensors appear only at the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..messages import StepPlan
from ..messages.arrays import Ints, Longs
from .slots import SlotTables, expand_rows
from .verify import sampled_tokens

Indices = NDArray[np.int64]

_GROUP_POSITIONS = 2048  # gathered at once: little enough to stay in the processor's cache
_FREE_PADDING = 512  # positions of padding that cost less than another call of attention


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token each that attend together, padded to the longest of them."""

    tokens: Tensor | None  # where the rows are in the step's tokens [rows]; None: they are all
    blocks: Tensor  # [rows * num_blocks], short rows padded with a block of their own
    adjacent: bool  # a single row whose blocks lie next to each other
    kv_lengths: Tensor  # [rows]
    length: int  # positions attended, padding included
    is_padded: bool


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A row of several tokens: a whole prompt or a chunk of one."""

    begin: int  # first token in the step
    end: int
    start: int  # position of the first token
    blocks: Tensor  # [num_blocks]
    adjacent: bool

    @property
    def kv_length(self) -> int:
        return self.start + self.end - self.begin


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step, flat: tokens of all rows one after the other, in planning order."""

    token_ids: Tensor  # [num_tokens]
    positions: Tensor  # [num_tokens]
    kv_rows: Tensor  # [num_tokens] where each token's keys and values go
    unwritten: Tensor  # rows past the end of sequences that enter a new block
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[ChunkRow, ...]
    sampling_tokens: Tensor  # [num_samples] the tokens behind which the step samples


def make_inputs(plan: StepPlan, tables: SlotTables) -> StepInputs:
    """Look up a plan's rows in the slot tables, which the plan has been applied to."""
    block_size = tables.block_size
    rows, positions = expand_rows(plan.starts, plan.lengths)
    slots = plan.slots[rows]
    kv_rows = tables.blocks_of(slots, positions).astype(np.int64) * block_size
    kv_rows += positions % block_size
    ends = np.cumsum(plan.lengths, dtype=np.int64)
    is_decode = plan.lengths == 1
    return StepInputs(
        token_ids=_tensor(tables.tokens[slots, positions]),
        positions=_tensor(positions),
        kv_rows=torch.from_numpy(kv_rows),
        unwritten=_tensor(rows_past_the_end(plan.slots, plan.starts, plan.lengths, tables)),
        groups=tuple(_decode_groups(plan, tables, np.flatnonzero(is_decode), ends - 1)),
        chunks=tuple(_chunk_rows(plan, tables, np.flatnonzero(~is_decode), ends)),
        sampling_tokens=torch.from_numpy(sampled_tokens(plan)),
    )


def _tensor(array: NDArray[np.integer]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def rows_past_the_end(slots: Longs, starts: Ints, lengths: Ints, tables: SlotTables) -> Indices:
    """The rest of the last block of every row whose tokens enter that block."""
    size = tables.block_size
    ends = starts + lengths
    last_block_start = (ends - 1) // size * size
    enters = (last_block_start >= starts) & (ends % size != 0)
    if not enters.any():
        return np.zeros(0, dtype=np.int64)
    ends, first = ends[enters], last_block_start[enters]
    owner, offsets = expand_rows(ends - first, size - (ends - first))
    blocks = tables.blocks_of(slots[enters], first)
    return blocks[owner].astype(np.int64) * size + offsets


def _decode_groups(
    plan: StepPlan, tables: SlotTables, decode_rows: Indices, tokens: Indices
) -> Iterator[DecodeGroup]:
    """Group rows of like length, longest first, so that padding stays a small part of the work."""
    lengths = plan.starts[decode_rows] + 1
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        longest = int(lengths[order[begin]])
        waste = np.cumsum(longest - lengths[order[begin:]])
        useful = np.cumsum(lengths[order[begin:]])
        too_much = np.flatnonzero(waste > np.maximum(_FREE_PADDING, useful // 4))
        count = int(too_much[0]) if len(too_much) else len(order) - begin
        count = min(count, max(_GROUP_POSITIONS // longest, 1))
        members = np.sort(order[begin : begin + count])
        everything = count == len(plan.slots)
        yield _decode_group(
            tables,
            plan.slots[decode_rows[members]],
            lengths[members],
            None if everything else _tensor(tokens[decode_rows[members]]),
        )
        begin += count


def _decode_group(
    tables: SlotTables, slots: Longs, lengths: Ints, tokens: Tensor | None
) -> DecodeGroup:
    size = tables.block_size
    longest = int(lengths.max())
    num_blocks = -(-longest // size)
    table = tables.block_table[slots, :num_blocks].astype(np.int64)
    past = np.arange(num_blocks) * size >= lengths[:, None]
    blocks = np.where(past, table[:, :1], table).reshape(-1)
    single = len(slots) == 1
    length = longest if single else num_blocks * size
    return DecodeGroup(
        tokens=tokens,
        blocks=torch.from_numpy(blocks),
        adjacent=single and _are_adjacent(blocks),
        kv_lengths=_tensor(lengths),
        length=length,
        is_padded=bool((lengths != length).any()),
    )


def _chunk_rows(
    plan: StepPlan, tables: SlotTables, chunk_rows: Indices, ends: Indices
) -> Iterator[ChunkRow]:
    for row in chunk_rows.tolist():
        start, length, end = int(plan.starts[row]), int(plan.lengths[row]), int(ends[row])
        num_blocks = -(-(start + length) // tables.block_size)
        blocks = tables.block_table[plan.slots[row], :num_blocks].astype(np.int64)
        yield ChunkRow(
            begin=end - length,
            end=end,
            start=start,
            blocks=torch.from_numpy(blocks),
            adjacent=_are_adjacent(blocks),
        )


def _are_adjacent(blocks: Indices) -> bool:
    return bool((np.diff(blocks) == 1).all())
