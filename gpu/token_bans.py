"""Tokens that a request's own rules add to or ban: biases, allowed ids, bad words, n-grams.

A ban adds minus infinity, so that finding out what to ban needs no look at the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..messages import Adjustments, Ints, Longs, RowState, frozen_ints
from .row_pool import RowPool
from .uploads import for_device, to_device, uploaded

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
        logits[to_device(at, logits.device)] += self._rows.take(slots)


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
        rows = to_device(at, logits.device)
        logits[rows] = logits[rows].masked_fill(self._rows.take(slots), NEVER)


class Ban(Protocol):
    """Tokens that rows of one step may not sample, as far as the host knows them."""

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        """Make them impossible in float32 logits [rows, vocab], in place; tokens by slot are up to
        date.  # [num_slots, positions]"""
        ...


@dataclass(frozen=True, slots=True)
class WordEnds:
    """The last tokens of words, banned where the tokens before them were said; one word a line.
    Tensors of the host."""

    at: Tensor  # the row of the logits
    slots: Tensor
    places: Tensor  # [words, longest - 1] positions of what was said
    before: Tensor  # [words, longest - 1] what would have to stand there; -1: anything
    last: Tensor
    has_room: Tensor  # as many tokens were said

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        at, slots, places, before, last, has_room = (
            uploaded(column, logits.device)
            for column in (self.at, self.slots, self.places, self.before, self.last, self.has_room)
        )
        said = tokens[slots.unsqueeze(1), places]
        is_here = ((before == said) | (before < 0)).all(dim=1) & has_room
        _ban(logits, at, last, is_here)


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
        self.ban(at, slots, positions).apply(logits, self._tokens)

    def ban(self, at: Longs, slots: Longs, positions: Ints) -> Ban:
        """What these rows look for, which sample positions of slots that use it."""
        words = [self._words[slot] for slot in slots.tolist()]
        every = [word for of_row in words for word in of_row]
        row = np.repeat(np.arange(len(at)), list(map(len, words)))
        lengths = np.array(list(map(len, every)), dtype=np.int32)
        wanted = np.full((len(every), int(lengths.max())), -1, dtype=np.int32)
        for line, word in zip(wanted, every, strict=True):
            line[len(line) - len(word) :] = word  # they end together
        places = positions[row, None] - np.arange(wanted.shape[1] - 1, 0, -1, dtype=np.int32)
        has_room = lengths - 1 <= (positions - self._prompts[slots])[row]  # only in the answer
        columns = (at[row], slots[row], places.clip(0), wanted[:, :-1], wanted[:, -1], has_room)
        return WordEnds(*(for_device(column, self._tokens.device) for column in columns))


@dataclass(frozen=True, slots=True)
class NgramEnds:
    """What once followed the last tokens of rows, whose n-grams are all of one size."""

    size: int
    longest: int
    at: Tensor  # these on the host
    slots: Tensor
    positions: Tensor  # that are sampled: so many tokens there are before

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        device, before = logits.device, self.size - 1
        of_slots = uploaded(self.slots, device)
        ends = uploaded(self.positions, device)
        said = tokens[of_slots, : self.longest]  # [rows, longest]; `ends` count
        followers = said[:, before:]  # the last token of each n-gram
        places = torch.arange(before, said.shape[1], device=device)
        is_here = places < ends.unsqueeze(1)
        for place in range(before):
            own = tokens[of_slots, ends - before + place]
            is_here &= said[:, place : place + followers.shape[1]] == own.unsqueeze(1)
        rows = uploaded(self.at, device).unsqueeze(1).expand(followers.shape)
        _ban(logits, rows, followers, is_here)


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
        for ban in self.bans(at, slots, positions):
            ban.apply(logits, self._tokens)

    def bans(self, at: Longs, slots: Longs, positions: Ints) -> Iterator[Ban]:
        """What these rows look for, which sample positions of slots that use it."""
        sizes = self._sizes[slots]
        for size in np.unique(sizes).tolist():
            chosen = (sizes == size) & (positions >= size)  # fewer tokens hold no n-gram
            if chosen.any():
                columns = at[chosen], slots[chosen], positions[chosen]
                on_host = (for_device(column, self._tokens.device) for column in columns)
                yield NgramEnds(size, int(columns[2].max()), *on_host)


def _without_row(rows: RowPool, slots: Longs) -> list[int]:
    missing: list[int] = np.unique(slots[rows.places(slots) < 0]).tolist()
    return missing


def _ban(logits: Tensor, rows: Tensor, token_ids: Tensor, is_banned: Tensor) -> None:
    """Make tokens impossible; the same one may be named several times."""
    penalty = torch.zeros(is_banned.shape, device=logits.device).masked_fill_(is_banned, NEVER)
    logits.index_put_((rows, token_ids.long()), penalty, accumulate=True)
