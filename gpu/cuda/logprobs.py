"""Logprobs on the device: told beside the samples, by the host's count of who asked for what.

What is told of a token is made where its logits are, in queued work, and comes to the host as words
of the step's result: ids, logprobs and ranks of the token, of the likeliest and of those asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...messages import Ints, Logprobs, LogprobsWanted, Longs, RowFailed, StepPlan
from ..logprobs import AskedRows, Entries
from ..uploads import Upload

PIECE = 2**24  # logits of a prompt that are computed at once: 64 MiB


@dataclass(frozen=True, slots=True)
class _Told:
    """A token that is told of: where it is, and what beside it."""

    owner: int
    position: int
    top: int
    num_asked: int = 0
    place: int | None = None  # among what the step samples; None: it is the prompt's


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens that are told of together, all with as much beside them as any of them wants."""

    told: tuple[_Told, ...]
    top: int
    asked: Tensor  # [tokens, ids], short lines padded; this and the rest are on the device
    behind: Tensor  # [tokens]: which logits; of prompts: behind which of the step
    slots: Tensor | None = None  # [tokens] of prompts
    positions: Tensor | None = None

    @property
    def width(self) -> int:
        return 1 + self.top + self.asked.shape[1]

    @property
    def num_words(self) -> int:
        return 3 * len(self.told) * self.width


class StepTelling:
    """What one step tells of logits, from its plan to its result."""

    def __init__(self, plan: StepPlan, asked: AskedRows, vocab_size: int, upload: Upload):
        self._asked = asked
        self._upload = upload
        self._vocab_size = vocab_size
        self._prompts = tuple(self._prompt_pieces(plan))
        self._sampled = self._sampled_piece() if len(asked.places) else None

    @property
    def num_words(self) -> int:
        """Of the result."""
        return sum(piece.num_words for piece in self._pieces)

    @property
    def _pieces(self) -> tuple[_Piece, ...]:
        return (*self._prompts, *(() if self._sampled is None else (self._sampled,)))

    # Queued work

    def of_prompts(
        self, hidden: Tensor, logits_of: Callable[[Tensor], Tensor], tokens: Tensor
    ) -> list[Tensor]:
        """Words of the prompts' tokens, by the hidden states of a step and tokens by slot."""
        words = []
        for piece in self._prompts:
            assert piece.slots is not None
            assert piece.positions is not None
            raw = logits_of(hidden.index_select(0, piece.behind)).float()
            chosen = tokens[piece.slots, piece.positions].long()
            words.append(tell(raw, chosen, piece.asked, piece.top))
        return words

    def raw(self, logits: Tensor) -> Tensor | None:
        """Copies of the logits of sampled tokens that are told of, before anything changes them."""
        if self._sampled is None:
            return None
        return logits.index_select(0, self._sampled.behind).float()

    def of_samples(self, raw: Tensor, sampled: Tensor) -> Tensor:
        """Words of the sampled tokens, by what `raw` gave."""
        piece = self._sampled
        assert piece is not None
        chosen = sampled.index_select(0, piece.behind).clamp(min=0).long()
        return tell(raw, chosen, piece.asked, piece.top)

    # The result

    def read(
        self, words: Ints, token_ids: Ints, counts: Ints | None
    ) -> tuple[Logprobs | None, tuple[RowFailed, ...]]:
        """What is told, and the rows of which nothing can be; samples as in StepDone."""
        samples = self._asked.samples(token_ids, counts)
        found: list[tuple[_Told, Ints]] = []
        for piece in self._pieces:
            own, words = words[: piece.num_words], words[piece.num_words :]
            lines = own.reshape(len(piece.told), 3, piece.width)
            for told, line in zip(piece.told, lines, strict=True):
                if told.place is None or samples.get(told.place, -1) >= 0:
                    begin = 1 + piece.top
                    kept = np.r_[0 : 1 + told.top, begin : begin + told.num_asked]
                    found.append((told, line[:, kept]))
        found.sort(key=lambda one: (one[0].owner, one[0].position))
        entries = Entries()
        for told, (ids, values, ranks) in found:
            entries.put(told.owner, told.position, told.top, ids, values.view(np.float32), ranks)
        return entries.seal(), entries.failed

    # What is told of

    def _sampled_piece(self) -> _Piece:
        asked = self._asked
        told, ids = [], []
        for place in asked.places.tolist():
            row = int(asked.rows[place])
            wanted = asked.wanted[row]
            top = min(wanted.top, self._vocab_size)
            position = int(asked.positions[place])
            told.append(_Told(row, position, top, len(wanted.token_ids), place))
            ids.append(wanted.token_ids)
        return self._piece(told, ids, asked.places)

    def _prompt_pieces(self, plan: StepPlan) -> Iterator[_Piece]:
        size = max(PIECE // self._vocab_size, 1)
        for row, wanted in self._asked.wanted.items():
            positions, in_step = self._asked.prompt(row)
            for first in range(0, len(positions), size):
                own = np.array(positions[first : first + size], dtype=np.int64)
                yield self._prompt_piece(row, int(plan.slots[row]), wanted, own, in_step)

    def _prompt_piece(
        self, row: int, slot: int, wanted: LogprobsWanted, positions: Longs, in_step: int
    ) -> _Piece:
        top = min(wanted.prompt_top, self._vocab_size)
        told = [_Told(row, position, top) for position in positions.tolist()]
        of_slots = np.full_like(positions, slot)
        return self._piece(told, [()] * len(told), positions + (in_step - 1), of_slots, positions)

    def _piece(
        self,
        told: Sequence[_Told],
        asked: Sequence[tuple[int, ...]],
        behind: Longs,
        *of_prompts: Longs,
    ) -> _Piece:
        padded = np.zeros((len(told), max(map(len, asked))), dtype=np.int64)
        for line, ids in zip(padded, asked, strict=True):
            line[: len(ids)] = ids
        top = max(one.top for one in told)
        return _Piece(tuple(told), top, *self._upload((padded, behind, *of_prompts)))


def tell(raw: Tensor, chosen: Tensor, asked: Tensor, top: int) -> Tensor:
    """Ids, bits of logprobs and ranks of a token of each row, of the `top` likeliest, which of
    equals are the smaller ids, and of those asked for.  # flat of [rows, 3, ids] int32

    raw is float32 [rows, vocab], chosen int64 [rows], asked int64 [rows, ids].
    """
    best = _likeliest(raw, top)
    ids = torch.cat([chosen.unsqueeze(1), best, asked], dim=1)
    values = raw.gather(1, ids)
    most = raw.amax(dim=1, keepdim=True)
    total = (raw - most).exp().sum(dim=1, keepdim=True, dtype=torch.float64).log()
    logprobs = ((values - most).double() - total).float()
    ranks = torch.empty_like(ids, dtype=torch.int32)
    if top:
        falling = -values[:, 1 : 1 + top].contiguous()
        ranks[:, 1 : 1 + top] = torch.searchsorted(falling, falling, out_int32=True) + 1
    for column in (0, *range(1 + top, ids.shape[1])):
        ranks[:, column] = (raw > values[:, column : column + 1]).sum(dim=1) + 1
    return torch.stack([ids.int(), logprobs.view(torch.int32), ranks], dim=1).view(-1)


def _likeliest(raw: Tensor, top: int) -> Tensor:
    """The ids of the largest logits, the largest first; of equals the smaller.  # [rows, top]"""
    bits = (raw + 0.0).view(torch.int32).long()  # zeros have one sign
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # compares as the logits do
    vocab = raw.shape[1]
    last = torch.arange(vocab - 1, -1, -1, device=raw.device)
    return vocab - 1 - (order * vocab + last).topk(top, dim=1).values % vocab
