"""Tokens that a request's own rules add to or ban: biases, allowed ids, bad words, n-grams.

A ban adds minus infinity, so that finding out what to ban needs no look at the host.
"""

import numpy as np
import torch
from torch import Tensor

from ..messages import Adjustments, Ints, Longs, RowState, frozen_ints
from .row_pool import RowPool

NEVER = float("-inf")


class _GivenRows:
    """A row of the vocabulary for each slot, made of what its request gave once it samples."""

    def __init__(self, num_slots: int, dtype: torch.dtype) -> None:
        self._given: dict[int, Adjustments] = {}
        self._rows = RowPool(num_slots, dtype)

    def start(self, row: RowState, adjustments: Adjustments) -> None:
        self._given[row.slot] = adjustments

    def forget(self, slot: int) -> None:
        self._rows.drop(slot)
        self._given.pop(slot, None)


class Biases(_GivenRows):
    """logit_bias: a row of biases for each slot that has any."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots, torch.float32)

    def uses(self, adjustments: Adjustments) -> bool:
        return len(adjustments.logit_bias) > 0

    def apply(self, logits: Tensor, at: Longs, slots: Longs, positions: Ints) -> None:
        for slot in _without_row(self._rows, slots):
            bias = self._given[slot].logit_bias
            values = torch.tensor(list(bias.values()), device=logits.device)
            self._rows.start(slot, logits)[list(bias)] = values
        logits[torch.from_numpy(at).to(logits.device)] += self._rows.take(slots)


class AllowedIds(_GivenRows):
    """allowed_token_ids: a row of what is forbidden for each slot that allows only some."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots, torch.bool)

    def uses(self, adjustments: Adjustments) -> bool:
        return adjustments.allowed_token_ids is not None

    def apply(self, logits: Tensor, at: Longs, slots: Longs, positions: Ints) -> None:
        for slot in _without_row(self._rows, slots):
            allowed = self._given[slot].allowed_token_ids
            assert allowed is not None
            self._rows.start(slot, logits).fill_(True)[list(allowed)] = False
        rows = torch.from_numpy(at).to(logits.device)
        logits[rows] = logits[rows].masked_fill(self._rows.take(slots), NEVER)


class BadWords:
    """bad_words: the last token of each word, where the answer ends with the others."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens
        self._prompts = np.zeros(len(tokens), dtype=np.int32)
        self._words: dict[int, tuple[Ints, ...]] = {}  # by slot, each beginning with its end

    def uses(self, adjustments: Adjustments) -> bool:
        return len(adjustments.bad_words) > 0

    def start(self, row: RowState, adjustments: Adjustments) -> None:
        self._prompts[row.slot] = row.num_prompt_tokens
        self._words[row.slot] = tuple(map(frozen_ints, adjustments.bad_words))

    def forget(self, slot: int) -> None:
        self._words.pop(slot, None)

    def apply(self, logits: Tensor, at: Longs, slots: Longs, positions: Ints) -> None:
        words = [self._words[slot] for slot in slots.tolist()]
        every = [word for of_row in words for word in of_row]
        row = np.repeat(np.arange(len(at)), list(map(len, words)))
        lengths = np.array(list(map(len, every)), dtype=np.int32)
        wanted = np.full((len(every), int(lengths.max())), -1, dtype=np.int32)
        for line, word in zip(wanted, every, strict=True):
            line[len(line) - len(word) :] = word  # they end together
        has_room = lengths - 1 <= (positions - self._prompts[slots])[row]  # only in the answer
        device = logits.device
        places = positions[row, None] - np.arange(wanted.shape[1] - 1, 0, -1)  # of what was said
        of_slots = torch.from_numpy(slots[row]).to(device).unsqueeze(1)
        said = self._tokens[of_slots, torch.from_numpy(places.clip(0)).to(device)]
        before = torch.from_numpy(wanted[:, :-1]).to(device)
        is_here = ((before == said) | (before < 0)).all(dim=1)
        is_here &= torch.from_numpy(has_room).to(device)
        where = torch.from_numpy(at[row]), torch.from_numpy(wanted[:, -1].astype(np.int64))
        _ban(logits, where, is_here)


class NoRepeatedNgrams:
    """no_repeat_ngram_size: what once followed the last n - 1 tokens may not follow again."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens
        self._sizes = np.zeros(len(tokens), dtype=np.int64)

    def uses(self, adjustments: Adjustments) -> bool:
        return adjustments.no_repeat_ngram_size > 0

    def start(self, row: RowState, adjustments: Adjustments) -> None:
        self._sizes[row.slot] = adjustments.no_repeat_ngram_size

    def forget(self, slot: int) -> None:
        self._sizes[slot] = 0

    def apply(self, logits: Tensor, at: Longs, slots: Longs, positions: Ints) -> None:
        sizes = self._sizes[slots]
        for size in np.unique(sizes).tolist():
            chosen = (sizes == size) & (positions >= size)  # fewer tokens hold no n-gram
            if chosen.any():
                self._apply(logits, size, at[chosen], slots[chosen], positions[chosen])

    def _apply(self, logits: Tensor, size: int, at: Longs, slots: Longs, positions: Ints) -> None:
        device, before = logits.device, size - 1
        of_slots = torch.from_numpy(slots).to(device)
        ends = torch.from_numpy(positions).to(device)
        said = self._tokens[of_slots, : int(positions.max())]  # [rows, longest]; `ends` count
        followers = said[:, before:]  # the last token of each n-gram
        places = torch.arange(before, said.shape[1], device=device)
        is_here = places < ends.unsqueeze(1)
        for place in range(before):
            own = self._tokens[of_slots, ends - before + place]
            is_here &= said[:, place : place + followers.shape[1]] == own.unsqueeze(1)
        rows = torch.from_numpy(at).unsqueeze(1).expand(followers.shape)
        _ban(logits, (rows, followers.long()), is_here)


def _without_row(rows: RowPool, slots: Longs) -> list[int]:
    missing: list[int] = np.unique(slots[rows.places(slots) < 0]).tolist()
    return missing


def _ban(logits: Tensor, where: tuple[Tensor, Tensor], is_banned: Tensor) -> None:
    """Make tokens impossible; the same one may be named several times."""
    device = logits.device
    penalty = torch.zeros(is_banned.shape, device=device).masked_fill_(is_banned, NEVER)
    rows, token_ids = (index.to(device) for index in where)
    logits.index_put_((rows, token_ids), penalty, accumulate=True)
