"""StepAttention: attention of one step's rows over paged keys and values, on any torch device.

Decode rows attend in groups, chunks one by one. Every row's keys and values of a layer are stored
before any row attends, since a row may read blocks that another row of the step writes.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .inputs import ChunkRow, DecodeGroup, StepInputs
from .tensor_kv import TensorKV


@dataclass(frozen=True, slots=True)
class Scores:
    """How a layer scores: everything about its attention that is not keys and values."""

    scale: float
    window: int | None = None  # positions a token sees, itself included
    softcap: float | None = None
    sinks: Tensor | None = None  # [heads], logits that take part in the softmax and carry no value


class Attention(Protocol):
    """What every layer of a model calls."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        """Query [tokens, heads, dim], key and value [tokens, kv_heads, dim] → like query."""
        ...


class Workspace:
    """Buffers for gathered keys and values: allocated once, grown when a step needs more."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def gather(self, name: str, memory: Tensor, blocks: Tensor, block_size: int) -> Tensor:
        """The rows of `blocks` one after the other.  # [len(blocks) * block_size, heads, dim]"""
        _, heads, dim = memory.shape
        width = block_size * heads * dim
        needed = len(blocks) * width
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < needed:
            buffer = memory.new_empty(needed + needed // 4)
            self._buffers[name] = buffer
        out = buffer[:needed].view(len(blocks), width)
        torch.index_select(memory.view(-1, width), 0, blocks, out=out)
        return out.view(-1, heads, dim)


class StepAttention:
    """Stores and attends for one step; made anew for every step, so masks are made once."""

    def __init__(self, inputs: StepInputs, kv: TensorKV, workspace: Workspace) -> None:
        self._inputs = inputs
        self._kv = kv
        self._workspace = workspace
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        if len(inputs.unwritten):
            kv.clear(inputs.unwritten)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        """Query [tokens, heads, dim], key and value [tokens, kv_heads, dim] → like query."""
        inputs = self._inputs
        self._kv.write(layer, inputs.kv_rows, key, value)
        if not inputs.chunks and len(inputs.groups) == 1:
            return self._decode(layer, 0, inputs.groups[0], query, scores)
        out = query.new_empty((*query.shape[:2], value.shape[2]))
        for number, group in enumerate(inputs.groups):
            assert group.tokens is not None, "only a lone group holds every token"
            rows = query.index_select(0, group.tokens)
            out.index_copy_(0, group.tokens, self._decode(layer, number, group, rows, scores))
        for number, chunk in enumerate(inputs.chunks, start=len(inputs.groups)):
            tokens = slice(chunk.begin, chunk.end)
            if chunk.start == 0:
                keys, values = key[tokens], value[tokens]
            else:
                keys, values = self._stored(layer, chunk, chunk.kv_length)
            out[tokens] = self._chunk(number, chunk, query[tokens], keys, values, scores)
        return out

    def _decode(
        self, layer: int, number: int, group: DecodeGroup, query: Tensor, scores: Scores
    ) -> Tensor:
        rows, heads, dim = query.shape
        keys, values = self._stored(layer, group, group.length * rows)
        kv_heads = keys.shape[1]
        keys = keys.view(rows, group.length, kv_heads, -1).transpose(1, 2)
        values = values.view(rows, group.length, kv_heads, -1).transpose(1, 2)
        mask = self._decode_mask(number, group, scores.window, query)
        # The query heads of one key head stand where positions stand: each key is read once.
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, dim)
        if scores.softcap is None and scores.sinks is None:
            out = F.scaled_dot_product_attention(
                grouped, keys, values, attn_mask=mask, scale=scores.scale
            )
        else:
            out = _explicit_attention(grouped, keys, values, mask, scores)
        return out.reshape(rows, heads, -1)

    def _chunk(
        self,
        number: int,
        chunk: ChunkRow,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scores: Scores,
    ) -> Tensor:
        tokens, heads, dim = query.shape
        kv_heads = keys.shape[1]
        mask = self._chunk_mask(number, chunk, scores.window, query)
        if scores.softcap is None and scores.sinks is None:
            out = F.scaled_dot_product_attention(
                query.transpose(0, 1).unsqueeze(0),
                keys.transpose(0, 1).unsqueeze(0),
                values.transpose(0, 1).unsqueeze(0),
                attn_mask=mask,
                is_causal=mask is None,
                scale=scores.scale,
                enable_gqa=kv_heads != heads,
            )
            return out.squeeze(0).transpose(0, 1)
        grouped = query.view(tokens, kv_heads, heads // kv_heads, dim)
        if mask is None:
            mask = self._causal_mask(chunk, None, query)
        out = _explicit_attention(
            grouped,
            keys.transpose(0, 1),
            values.transpose(0, 1),
            mask[:, None, None, :],
            scores,
        )
        return out.reshape(tokens, heads, -1)

    def _stored(
        self, layer: int, rows: DecodeGroup | ChunkRow, length: int
    ) -> tuple[Tensor, Tensor]:
        """The first `length` rows of a table's blocks: a view where they lie in one piece."""
        keys, values, size = self._kv.keys[layer], self._kv.values[layer], self._kv.block_size
        if rows.adjacent:
            begin = int(rows.blocks[0]) * size
            return keys[begin : begin + length], values[begin : begin + length]
        gather = self._workspace.gather
        return (
            gather("keys", keys, rows.blocks, size)[:length],
            gather("values", values, rows.blocks, size)[:length],
        )

    def _decode_mask(
        self, number: int, group: DecodeGroup, window: int | None, like: Tensor
    ) -> Tensor | None:
        """What each row may see, added to its scores.  # [rows, 1, 1, length]"""
        if window is not None and window >= group.length:
            window = None
        if window is None and not group.is_padded:
            return None
        place = (number, window)
        if place not in self._masks:
            position = torch.arange(group.length)
            ends = group.kv_lengths[:, None]
            hidden = position >= ends
            if window is not None:
                hidden |= position < ends - window
            self._masks[place] = _additive(hidden, like)[:, None, None, :]
        return self._masks[place]

    def _chunk_mask(
        self, number: int, chunk: ChunkRow, window: int | None, like: Tensor
    ) -> Tensor | None:
        """None where plain causality from position 0 says it all.  # [tokens, kv_length]"""
        if window is not None and window >= chunk.kv_length:
            window = None
        if chunk.start == 0 and window is None:
            return None
        place = (number, window)
        if place not in self._masks:
            self._masks[place] = self._causal_mask(chunk, window, like)
        return self._masks[place]

    @staticmethod
    def _causal_mask(chunk: ChunkRow, window: int | None, like: Tensor) -> Tensor:
        own = torch.arange(chunk.start, chunk.kv_length)[:, None]
        position = torch.arange(chunk.kv_length)
        hidden = position > own
        if window is not None:
            hidden |= position <= own - window
        return _additive(hidden, like)


def _additive(hidden: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, float("-inf"))


def _explicit_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scores: Scores
) -> Tensor:
    """Attention written out, for what the fused one lacks.

    Query [rows, kv_heads, group, dim]; keys and values [rows or 1, kv_heads, length, dim].
    """
    logits = torch.matmul(query.float(), keys.float().transpose(-1, -2)) * scores.scale
    if scores.softcap is not None:
        logits = torch.tanh(logits / scores.softcap) * scores.softcap
    if mask is not None:
        logits = logits + mask
    if scores.sinks is None:
        weights = torch.softmax(logits, dim=-1)
    else:
        sinks = scores.sinks.float().view(1, *query.shape[1:3], 1).expand(*logits.shape[:-1], 1)
        weights = torch.softmax(torch.cat([logits, sinks], dim=-1), dim=-1)[..., :-1]
    return torch.matmul(weights, values.float()).to(query.dtype)
