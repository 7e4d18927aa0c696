"""Tokens that a request's own rules add to or ban: biases, allowed ids, bad words, n-grams.

A ban adds minus infinity: what is not a number stays none.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ..messages import Adjustments, Bools, Floats, Ints, Longs, RowState, frozen_ints
from .row_pool import RowPool

NEVER = np.float32("-inf")


class _GivenRows:
    """A row of the vocabulary for each slot, made of what its request gave once it samples."""

    def __init__(self, num_slots: int, dtype: DTypeLike) -> None:
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
        super().__init__(num_slots, np.float32)

    def uses(self, adjustments: Adjustments) -> bool:
        return len(adjustments.logit_bias) > 0

    def apply(self, logits: Floats, at: Longs, slots: Longs, positions: Ints) -> None:
        for slot in _without_row(self._rows, slots):
            bias = self._given[slot].logit_bias
            self._rows.start(slot, logits.shape[1])[list(bias)] = list(bias.values())
        logits[at] += self._rows.take(slots)


class AllowedIds(_GivenRows):
    """allowed_token_ids: a row of what is forbidden for each slot that allows only some."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots, np.bool_)

    def uses(self, adjustments: Adjustments) -> bool:
        return adjustments.allowed_token_ids is not None

    def apply(self, logits: Floats, at: Longs, slots: Longs, positions: Ints) -> None:
        for slot in _without_row(self._rows, slots):
            allowed = self._given[slot].allowed_token_ids
            assert allowed is not None
            is_forbidden = self._rows.start(slot, logits.shape[1])
            is_forbidden.fill(True)
            is_forbidden[list(allowed)] = False
        logits[at] = np.where(self._rows.take(slots), NEVER, logits[at])


@dataclass(frozen=True, slots=True)
class WordEnds:
    """The last tokens of words, banned where the tokens before them were said; one word a line."""

    at: Longs  # the row of the logits
    slots: Longs
    places: Ints  # [words, longest - 1] positions of what was said
    before: Ints  # [words, longest - 1] what would have to stand there; -1: anything
    last: Ints
    has_room: Bools  # as many tokens were said

    def apply(self, logits: Floats, tokens: Ints) -> None:
        """Make them impossible in float32 logits [rows, vocab], in place; tokens by slot are up to
        date.  # [num_slots, positions]"""
        said = tokens[self.slots[:, None], self.places]
        is_here = ((self.before == said) | (self.before < 0)).all(axis=1) & self.has_room
        _ban(logits, self.at[is_here], self.last[is_here])


class BadWords:
    """bad_words: the last token of each word, where the answer ends with the others."""

    def __init__(self, num_slots: int) -> None:
        self._prompts = np.zeros(num_slots, dtype=np.int32)
        self._words: dict[int, tuple[Ints, ...]] = {}  # by slot, each beginning with its end

    def uses(self, adjustments: Adjustments) -> bool:
        return len(adjustments.bad_words) > 0

    def start(self, row: RowState, adjustments: Adjustments) -> None:
        self._prompts[row.slot] = row.num_prompt_tokens
        self._words[row.slot] = tuple(map(frozen_ints, adjustments.bad_words))

    def forget(self, slot: int) -> None:
        self._words.pop(slot, None)

    def bans(self, at: Longs, slots: Longs, positions: Ints) -> Iterator[WordEnds]:
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
        yield WordEnds(at[row], slots[row], places.clip(0), wanted[:, :-1], wanted[:, -1], has_room)


@dataclass(frozen=True, slots=True)
class NgramEnds:
    """What once followed the last tokens of rows, whose n-grams are all of one size."""

    size: int
    longest: int
    at: Longs
    slots: Longs
    positions: Ints  # that are sampled: so many tokens there are before

    def apply(self, logits: Floats, tokens: Ints) -> None:
        """As `WordEnds.apply` does."""
        ends, before = self.positions, self.size - 1
        said = tokens[self.slots, : self.longest]  # [rows, longest]; `ends` count
        followers = said[:, before:]  # the last token of each n-gram
        is_here = np.arange(before, said.shape[1]) < ends[:, None]
        for place in range(before):
            own = tokens[self.slots, ends - before + place]
            is_here &= said[:, place : place + followers.shape[1]] == own[:, None]
        rows = is_here.nonzero()[0]
        _ban(logits, self.at[rows], followers[is_here])


class NoRepeatedNgrams:
    """no_repeat_ngram_size: what once followed the last n - 1 tokens may not follow again."""

    def __init__(self, num_slots: int) -> None:
        self._sizes = np.zeros(num_slots, dtype=np.int64)

    def uses(self, adjustments: Adjustments) -> bool:
        return adjustments.no_repeat_ngram_size > 0

    def start(self, row: RowState, adjustments: Adjustments) -> None:
        self._sizes[row.slot] = adjustments.no_repeat_ngram_size

    def forget(self, slot: int) -> None:
        self._sizes[slot] = 0

    def bans(self, at: Longs, slots: Longs, positions: Ints) -> Iterator[NgramEnds]:
        """What these rows look for, which sample positions of slots that use it."""
        sizes = self._sizes[slots]
        for size in np.unique(sizes).tolist():
            chosen = (sizes == size) & (positions >= size)  # fewer tokens hold no n-gram
            if chosen.any():
                ends = positions[chosen]
                yield NgramEnds(size, int(ends.max()), at[chosen], slots[chosen], ends)


class BansOfTokens:
    """Bans of one of these kinds as an adjustment, by tokens on the host."""

    def __init__(self, kind: BadWords | NoRepeatedNgrams, tokens: Ints) -> None:
        self._kind = kind
        self._tokens = tokens
        self.uses, self.start, self.forget = kind.uses, kind.start, kind.forget

    def apply(self, logits: Floats, at: Longs, slots: Longs, positions: Ints) -> None:
        for ban in self._kind.bans(at, slots, positions):
            ban.apply(logits, self._tokens)


def _without_row(rows: RowPool, slots: Longs) -> list[int]:
    missing: list[int] = np.unique(slots[rows.places(slots) < 0]).tolist()
    return missing


def _ban(logits: Floats, rows: Longs, token_ids: Ints) -> None:
    """Make tokens impossible; the same one may be named several times."""
    with np.errstate(invalid="ignore"):  # what is infinite becomes no number, and its row fails
        logits[rows, token_ids] += NEVER
