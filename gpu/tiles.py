"""TiledModel: a decoder whose logits have the same bits alone and in any batch, however chunked.

How an operation rounds may depend on the shape of what it works on: a product of seven rows is
cut otherwise than one of seventy. So a step is computed in tiles of a fixed number of tokens,
filled up with idle ones: every operation has one shape, in every step. Tiles run one after the
other in planning order, each through all layers; a token sees what earlier tiles and its own have
written.

That a token's place within a tile makes no difference is not taken for granted: it is tried when a
model is bound, and if it does the tile is a single token.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..messages import ConfigError, Floats, Longs, StepPlan
from .attention import Attention, Scores, Workspace
from .inputs import StepInputs
from .models.decoder import Decoder
from .slots import SlotTables
from .tensor_kv import TensorKV
from .tile_attention import TileAttention, TileRows
from .verify import sampled_tokens

TILE = 16  # tokens: what a product of weights that come from memory takes in its stride


class TiledModel:
    """Plans to logits, tile by tile."""

    def __init__(self, decoder: Decoder, kv: TensorKV) -> None:
        """Raises ConfigError for a model whose attention has no form of one shape."""
        self._decoder = decoder
        self._kv = kv
        self._workspace = Workspace()
        self.tile = TILE if _is_same_at_every_place(decoder, TILE) else 1
        self._hidden: Tensor | None = None  # of the last plan's tokens  # [tokens, hidden]

    @torch.inference_mode()
    def logits(self, plan: StepPlan, tables: SlotTables) -> Floats:
        parts = [self._run(rows, tables) for rows in _cut(plan, self.tile)]
        self._hidden = torch.cat(parts)
        return self.logits_behind(sampled_tokens(plan))

    @torch.inference_mode()
    def logits_behind(self, tokens: Longs) -> Floats:
        logits: Floats = self._head(torch.from_numpy(tokens)).float().numpy()
        return logits

    def _head(self, tokens: Tensor) -> Tensor:
        assert self._hidden is not None, "nothing was computed"
        hidden, tile = self._hidden, self.tile
        if not len(tokens):
            return self._decoder.head(hidden[:0])
        parts: list[Tensor] = []
        for places in torch.split(tokens, tile):
            filled = torch.zeros(tile, dtype=torch.int64)
            filled[: len(places)] = places
            parts.append(self._decoder.head(hidden.index_select(0, filled))[: len(places)])
        return torch.cat(parts)

    def close(self) -> None:
        """Everything is torch's own."""

    def _run(self, rows: TileRows, tables: SlotTables) -> Tensor:
        """What the last layer says of the rows' tokens.  # [tokens, hidden]"""
        attention = TileAttention(rows, tables, self._kv, self._workspace)
        slots, positions = rows.tokens()
        token_ids = tables.tokens[slots, positions]
        inputs = _inputs(token_ids.tolist(), positions.tolist(), self.tile)
        return self._decoder.forward(inputs, attention)[: len(positions)].clone()


def _cut(plan: StepPlan, tile: int) -> Iterator[TileRows]:
    """The plan's rows in tiles, in planning order; a row may be cut anywhere."""
    pieces: list[tuple[int, int, int]] = []  # (slot, start, length)
    room = tile
    for slot, start, length in zip(
        plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist(), strict=True
    ):
        while length:
            taken = min(length, room)
            pieces.append((slot, start, taken))
            start, length, room = start + taken, length - taken, room - taken
            if not room:
                yield TileRows.of(pieces)
                pieces, room = [], tile
    if pieces:
        yield TileRows.of(pieces)


def _inputs(token_ids: list[int], positions: list[int], tile: int) -> StepInputs:
    """A tile as a decoder takes it: idle tokens are number 0 at position 0."""
    idle = [0] * (tile - len(token_ids))
    nothing = torch.zeros(0, dtype=torch.int64)
    return StepInputs(
        token_ids=torch.tensor(token_ids + idle),
        positions=torch.tensor(positions + idle),
        kv_rows=nothing,
        unwritten=nothing,
        groups=(),
        chunks=(),
        sampling_tokens=nothing,
    )


# What is tried when a model is bound


class _Oneself:
    """Attention of tokens that see only themselves: what is tried is everything but attention."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        if scores.softcap is not None or scores.sinks is not None:
            raise ConfigError(
                "deterministic cannot be had: the model caps its attention scores or has sinks, "
                "for which there is no attention of one shape"
            )
        if key.shape[-1] != value.shape[-1]:
            raise ConfigError(
                "deterministic cannot be had: the model's keys and values differ in width"
            )
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)


def _is_same_at_every_place(decoder: Decoder, tile: int) -> bool:
    """Whether a token has the same logits at every place of a tile, whatever is beside it."""
    rng, attention = np.random.default_rng(0), _Oneself()
    token_id, most = 1, 32  # ids that any vocabulary has
    everywhere = _logits(decoder, [token_id] * tile, attention)
    for place in range(tile):
        beside = rng.integers(0, most, tile).tolist()
        beside[place] = token_id
        if not torch.equal(_logits(decoder, beside, attention)[place], everywhere[0]):
            return False
    return all(torch.equal(own, everywhere[0]) for own in everywhere)


def _logits(decoder: Decoder, token_ids: list[int], attention: Attention) -> Tensor:
    inputs = _inputs(token_ids, [0] * len(token_ids), len(token_ids))
    return decoder.head(decoder.forward(inputs, attention))
