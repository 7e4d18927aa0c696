"""GumbelSampler: greedy and temperature, by the noise of every device; anything else it refuses."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...messages import RowState
from ..slots import FLOAT32_MAX
from .changes import Changes
from .ops import Ops


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Places that a step samples, where it computes; a row with drafts has several, in order."""

    slots: Tensor  # [rows] of int32
    positions: Tensor  # [rows] of int32: those that the samples take
    mask_rows: Tensor | None = None  # [masks] of int32: which rows a grammar holds to something
    mask_words: Tensor | None = None  # [masks, words] of int32: what it allows them


class GumbelSampler:
    """Temperature, seed and index by slot, and one draw for each row."""

    def __init__(self, num_slots: int, device: torch.device, ops: Ops) -> None:
        self._ops = ops
        self._temperature = torch.zeros(num_slots, dtype=torch.float32, device=device)
        self._seed = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._index = torch.zeros(num_slots, dtype=torch.int32, device=device)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """Tables by slot, which changes may name."""
        return self._temperature, self._seed, self._index

    def start(self, row: RowState, changes: Changes, first_table: int) -> str | None:
        """Note what a slot's lines become; returns why it cannot be sampled here, if so."""
        temperature = np.array([min(row.temperature, FLOAT32_MAX)], dtype=np.float32)
        seed = np.array([row.seed], dtype=np.int64)
        index = np.array([row.index], dtype=np.int32)
        changes.write(first_table, row.slot, 0, temperature.view(np.int32))
        changes.write(first_table + 1, row.slot, 0, seed.view(np.int32))
        changes.write(first_table + 2, row.slot, 0, index)
        return why_not(row)

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:
        """A token id for each row of logits [rows, vocab], which may be written to; below 0 where
        it failed, as in `row_failures`.  # [rows] of int32"""
        if rows.mask_rows is not None and rows.mask_words is not None:
            _apply_masks(logits, rows.mask_rows, rows.mask_words)
        return self._ops.sample(
            logits,
            slots=rows.slots,
            positions=rows.positions,
            temperature=self._temperature,
            seed=self._seed,
            index=self._index,
        )


def why_not(row: RowState) -> str | None:
    """What a row asks for that cannot be had on this device, in words; None if nothing."""
    wishes = {
        "top_k": row.top_k > 0,
        "top_p": row.top_p < 1,
        "min_p": row.min_p > 0,
        "typical_p": row.typical_p < 1,
        "min_tokens": bool(row.banned_ids) and row.min_end > row.num_prompt_tokens,
        "logprobs": row.logprobs is not None,
        "penalties, biases, bans or processors of logits": row.adjustments is not None,
    }
    names = [name for name, is_wished in wishes.items() if is_wished]
    if not names:
        return None
    return f"the cuda device cannot do {', '.join(names)} yet; device='cpu' can"


def _apply_masks(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """What a mask does not allow becomes impossible; nothing beyond its last word is allowed."""
    vocab = logits.shape[1]
    bits = torch.arange(32, dtype=torch.int32, device=words.device)
    is_banned = ((words.unsqueeze(2) >> bits) & 1).view(len(words), -1)[:, :vocab] == 0
    part = logits.index_select(0, rows)
    part[:, : is_banned.shape[1]].masked_fill_(is_banned, float("-inf"))
    part[:, is_banned.shape[1] :].fill_(float("-inf"))
    logits.index_copy_(0, rows.long(), part)
