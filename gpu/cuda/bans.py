"""Bans by words and n-grams on a device: what the host looks for, found without asking it.

A ban adds minus infinity, so that finding out what to ban needs no look at the host.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..token_bans import NgramEnds, WordEnds
from ..uploads import Upload

NEVER = float("-inf")


class Ban(Protocol):
    """Tokens that rows of one step may not sample, as far as the host knows them."""

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        """Make them impossible in float32 logits [rows, vocab], in place; tokens by slot are up to
        date.  # [num_slots, positions]"""
        ...


@dataclass(frozen=True, slots=True)
class WordBan:
    """WordEnds on the device."""

    at: Tensor
    slots: Tensor
    places: Tensor
    before: Tensor
    last: Tensor
    has_room: Tensor

    @classmethod
    def of(cls, ends: WordEnds, upload: Upload) -> "WordBan":
        columns = ends.at, ends.slots, ends.places, ends.before, ends.last, ends.has_room
        return cls(*upload(columns))

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        said = tokens[self.slots.unsqueeze(1), self.places]
        is_here = ((self.before == said) | (self.before < 0)).all(dim=1) & self.has_room
        _ban(logits, self.at, self.last, is_here)


@dataclass(frozen=True, slots=True)
class NgramBan:
    """NgramEnds, those of rows on the device."""

    size: int
    longest: int
    at: Tensor
    slots: Tensor
    positions: Tensor

    @classmethod
    def of(cls, ends: NgramEnds, upload: Upload) -> "NgramBan":
        return cls(ends.size, ends.longest, *upload((ends.at, ends.slots, ends.positions)))

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        before, ends = self.size - 1, self.positions
        said = tokens[self.slots, : self.longest]  # [rows, longest]; `ends` count
        followers = said[:, before:]  # the last token of each n-gram
        places = torch.arange(before, said.shape[1], device=logits.device)
        is_here = places < ends.unsqueeze(1)
        for place in range(before):
            own = tokens[self.slots, ends - before + place]
            is_here &= said[:, place : place + followers.shape[1]] == own.unsqueeze(1)
        rows = self.at.unsqueeze(1).expand(followers.shape)
        _ban(logits, rows, followers, is_here)


def _ban(logits: Tensor, rows: Tensor, token_ids: Tensor, is_banned: Tensor) -> None:
    """Make tokens impossible; the same one may be named several times."""
    penalty = torch.zeros(is_banned.shape, device=logits.device).masked_fill_(is_banned, NEVER)
    logits.index_put_((rows, token_ids.long()), penalty, accumulate=True)
