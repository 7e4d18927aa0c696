"""TileAttention: attention whose result for a token does not depend on what else a step computes.

Each token attends by itself: the query heads that share a key head, over whole runs of positions as
long as the processor kernel works on at once. So a token's sums are cut at the same positions, in
the same order, alone and in a batch. Runs in which a token sees nothing add exactly nothing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..messages import Ints, Longs, frozen_ints, frozen_longs
from .attention import Scores, Workspace
from .inputs import rows_past_the_end
from .slots import SlotTables, expand_rows
from .tensor_kv import TensorKV

RUN = 512  # positions; torch's kernel for the processor cuts keys at multiples of it


@dataclass(frozen=True, slots=True)
class TileRows:
    """The rows of a tile, in parallel columns."""

    slots: Longs
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, pieces: Sequence[tuple[int, int, int]]) -> "TileRows":
        slots, starts, lengths = zip(*pieces, strict=True)
        return cls(frozen_longs(slots), frozen_ints(starts), frozen_ints(lengths))

    def tokens(self) -> tuple[Longs, Ints]:
        """(slot, position) of every token."""
        rows, positions = expand_rows(self.starts, self.lengths)
        return self.slots[rows], positions


class TileAttention:
    """Stores and attends for one tile. Keys and values are taken in float32: for narrower types
    the kernel may go another way by the size of a batch."""

    def __init__(
        self, rows: TileRows, tables: SlotTables, kv: TensorKV, workspace: Workspace
    ) -> None:
        self._kv = kv
        self._workspace = workspace
        self._rows = list(_attending_rows(rows, tables))
        self._masks: dict[tuple[int, int | None], Tensor] = {}
        slots, positions = rows.tokens()
        places = tables.blocks_of(slots, positions).astype(np.int64) * kv.block_size
        self._places = torch.from_numpy(places + positions % kv.block_size)
        unwritten = rows_past_the_end(rows.slots, rows.starts, rows.lengths, tables)
        if len(unwritten):
            kv.clear(torch.from_numpy(unwritten))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        """Query [tile, heads, dim], key and value [tile, kv_heads, dim] → like query."""
        num_tokens = len(self._places)
        self._kv.write(layer, self._places, key[:num_tokens], value[:num_tokens])
        out = query.new_zeros((*query.shape[:2], value.shape[2]))
        begin = 0
        for number, row in enumerate(self._rows):
            tokens = slice(begin, begin + len(row.positions))
            mask = self._mask(number, row, scores.window)
            out[tokens] = self._attend(layer, row, query[tokens].float(), mask, scores.scale)
            begin = tokens.stop
        return out

    def _attend(
        self, layer: int, row: "_AttendingRow", query: Tensor, mask: Tensor, scale: float
    ) -> Tensor:
        tokens, heads, dim = query.shape
        keys, values = self._stored("keys", layer, row), self._stored("values", layer, row)
        kv_heads = keys.shape[0]
        grouped = query.reshape(tokens, kv_heads, heads // kv_heads, dim)
        out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            grouped,
            keys.expand(tokens, *keys.shape),
            values.expand(tokens, *values.shape),
            0.0,
            False,
            attn_mask=mask,
            scale=scale,
        )
        attended: Tensor = out.reshape(tokens, heads, -1)
        return attended

    def _stored(self, name: str, layer: int, row: "_AttendingRow") -> Tensor:
        """A row's keys or values over whole runs.  # [kv_heads, positions, dim]"""
        memory = (self._kv.keys if name == "keys" else self._kv.values)[layer]
        gathered = self._workspace.gather(name, memory, row.blocks, self._kv.block_size)
        return gathered.float().transpose(0, 1)

    def _mask(self, number: int, row: "_AttendingRow", window: int | None) -> Tensor:
        """What each token does not see.  # [tokens, 1, 1, positions]"""
        if (number, window) not in self._masks:
            position, own = torch.arange(row.length), row.positions[:, None]
            hidden = position > own
            if window is not None:
                hidden |= position <= own - window
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
            self._masks[number, window] = mask[:, None, None, :]
        return self._masks[number, window]


@dataclass(frozen=True, slots=True)
class _AttendingRow:
    """A row of a tile, and where the positions lie that it may see."""

    positions: Tensor  # of its tokens
    blocks: Tensor  # of whole runs; behind the last one it has, its first stands in
    length: int  # positions in all of them


def _attending_rows(rows: TileRows, tables: SlotTables) -> Iterator[_AttendingRow]:
    size = tables.block_size
    run = math.lcm(RUN, size)
    for slot, start, length in zip(
        rows.slots.tolist(), rows.starts.tolist(), rows.lengths.tolist(), strict=True
    ):
        end = start + length
        num_positions = -(-end // run) * run
        blocks = np.full(num_positions // size, tables.block_table[slot, 0], dtype=np.int64)
        num_held = -(-end // size)
        blocks[:num_held] = tables.block_table[slot, :num_held]
        yield _AttendingRow(torch.arange(start, end), torch.from_numpy(blocks), num_positions)
