"""SamplingTables: how slots are sampled, on the device by slot, and what the host knows of it.

The host's half changes at once, on the thread that launches steps: `begin` and `needs`. The
device's half changes by queued work only: a line as one of the tables that updates name, the rows
beside it by `take_fills`. So the host says what a step uses without asking the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...messages import Adjustments, Ints, LogprobsWanted, Longs, RowState
from ..custom_logits import CustomLogits
from ..kernels import sampling_line as line
from ..kernels.adjust import RowMasks, Wishes
from ..kernels.gumbel import LEAST_TEMPERATURE
from ..logits_processors import LogitsProcessors
from ..row_pool import RowPlaces
from ..slots import FLOAT32_MAX, INT32_MAX
from ..token_bans import BadWords, NoRepeatedNgrams
from ..uploads import Upload
from .bans import Ban, NgramBan, WordBan
from .processors import ProcessorCalls
from .row_table import RowTable

Fill = Callable[[], None]
"""Work for the device's queue that gives a slot its rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """What the rows of one step use; the step pays for nothing else."""

    has_top: bool = False  # top-k or top-p; this and the next three only of rows that draw
    has_top_p: bool = False
    has_min_p: bool = False
    typical: tuple[Tensor, Tensor] | None = None  # rows of typical-p and theirs
    has_counts: bool = False
    has_biases: bool = False
    has_bans: bool = False
    bans: tuple[Ban, ...] = ()  # by words and n-grams
    processors: ProcessorCalls | None = None
    forbids: tuple[Tensor, Tensor] | None = None  # rows of `processors` that allow only some ids,
    # and their rows of biases


NO_NEEDS = Needs()
CUTS = Needs(has_top=True, has_top_p=True, has_min_p=True)
"""What rows use that want to sample among the likeliest, each in its way."""

_TOP_K, _TOP_P, _MIN_P, _TYPICAL, _COUNTS, _BIASES, _BANS, _WORDS, _NGRAMS, _CUSTOM = (
    1 << bit for bit in range(10)
)


class SamplingTables:
    """Lines and rows of the vocabulary for the slots that want some, and their host's half."""

    def __init__(
        self,
        tokens: Tensor,
        vocab_size: int,
        upload: Upload,
        processors: LogitsProcessors | None = None,
    ) -> None:
        """`tokens` are the tokens by slot, on the device, kept up to date by their owner.
        # [num_slots, positions] of int32"""
        num_slots = len(tokens)
        self.tokens = tokens
        self.vocab_size = vocab_size
        self._upload = upload
        self.lines = torch.zeros(
            (num_slots, line.WIDTH.value), dtype=torch.int32, device=tokens.device
        )
        """[num_slots, words]; the device's updates write them, of slots that begin."""
        self.temperature = line.floats(self.lines, line.TEMPERATURE)
        self.seed = line.seeds(self.lines)
        self.index = line.ints(self.lines, line.INDEX)
        self._uses = np.zeros(num_slots, dtype=np.int32)  # what each slot uses, as bits
        self._min_end = np.zeros(num_slots, dtype=np.int32)
        self._typical_p = np.ones(num_slots, dtype=np.float32)
        self._pools = (
            _Pool(num_slots, vocab_size, torch.int32),
            _Pool(num_slots, vocab_size, torch.float32),
            _Pool(num_slots, -(-vocab_size // 32), torch.int32),
        )
        self._words = BadWords(num_slots)
        self._ngrams = NoRepeatedNgrams(num_slots)
        self._processors = processors or {}
        self._custom = CustomLogits(tokens, self._processors, upload)
        self._fills: list[Fill] = []
        self.logprobs: dict[int, LogprobsWanted] = {}
        """Of the slots that asked for any; of the host."""

    # The host's half

    def begin(self, row: RowState) -> Ints:
        """A slot begins an epoch; returns the line that an update has to write for it, behind
        whatever steps before it use. Raises IndexError for an id beyond the vocabulary."""
        slot, wishes = row.slot, row.adjustments or _NO_WISHES
        _require_ids(row, wishes, self.vocab_size)
        for pool in self._pools:
            pool.places.drop(slot)
        found = _line_of(row, wishes)
        counts, biases, bans = self._pools
        if wishes.has_penalties:
            found[line.COUNTS_ROW.value] = self._fill(counts, slot, Tensor.zero_)
        if len(wishes.logit_bias) or wishes.allowed_token_ids is not None:
            write = _biases_of(wishes, self._upload)
            found[line.BIASES_ROW.value] = self._fill(biases, slot, write)
        if row.banned_ids and row.min_end > row.num_prompt_tokens:
            (words,) = self._upload((_bits_of(row.banned_ids, bans.width),))
            copy = partial(Tensor.copy_, other=words)
            found[line.BANS_ROW.value] = self._fill(bans, slot, copy)
        kinds: tuple[CustomLogits | BadWords | NoRepeatedNgrams, ...]
        kinds = (self._custom, self._words, self._ngrams)
        for kind in kinds:
            kind.forget(slot)
            if kind.uses(wishes):
                kind.start(row, wishes)
        self.logprobs.pop(slot, None)
        if row.logprobs is not None:
            self.logprobs[slot] = row.logprobs
        self._uses[slot] = self._uses_of(row, wishes, found)
        self._min_end[slot] = row.min_end
        self._typical_p[slot] = row.typical_p
        return found

    def _uses_of(self, row: RowState, wishes: Adjustments, found: Ints) -> int:
        draws = found.view(np.float32)[line.TEMPERATURE.value] > LEAST_TEMPERATURE
        uses = {
            _TOP_K: draws and 0 < row.top_k < self.vocab_size,
            _TOP_P: draws and np.float32(row.top_p) < 1,
            _MIN_P: draws and found.view(np.float32)[line.LEAST_LOG_SHARE.value] > -np.inf,
            _TYPICAL: draws and np.float32(row.typical_p) < 1,
            _COUNTS: found[line.COUNTS_ROW.value] >= 0,
            _BIASES: found[line.BIASES_ROW.value] >= 0,
            _BANS: found[line.BANS_ROW.value] >= 0,
            _WORDS: self._words.uses(wishes),
            _NGRAMS: self._ngrams.uses(wishes),
            _CUSTOM: self._custom.uses(wishes) and self.unsupported(row) is None,
        }
        return sum(bit for bit, is_used in uses.items() if is_used)

    def needs(self, slots: Longs, positions: Ints) -> Needs:
        """What a step uses that samples these positions of slots; the rows of a slot stand
        together, in order.  # both [rows]"""
        uses = self._uses_at(slots, positions)
        used = int(np.bitwise_or.reduce(uses, initial=0))
        if not used:
            return NO_NEEDS
        return Needs(
            has_top=used & (_TOP_K | _TOP_P) != 0,
            has_top_p=used & _TOP_P != 0,
            has_min_p=used & _MIN_P != 0,
            typical=self._typical(slots, uses) if used & _TYPICAL else None,
            has_counts=used & _COUNTS != 0,
            has_biases=used & _BIASES != 0,
            has_bans=used & _BANS != 0,
            bans=self._bans(slots, positions, uses) if used & (_WORDS | _NGRAMS) else (),
            processors=self._calls(slots, positions, uses) if used & _CUSTOM else None,
            forbids=self._forbids(slots, uses) if used & _CUSTOM and used & _BIASES else None,
        )

    def cuts(self, slots: Longs, positions: Ints) -> Needs | None:
        """NO_NEEDS or CUTS where that is all that such a step uses, else None; nothing is looked up
        or sent for it yet."""
        used = int(np.bitwise_or.reduce(self._uses_at(slots, positions), initial=0))
        if used & ~(_TOP_K | _TOP_P | _MIN_P):
            return None
        return CUTS if used else NO_NEEDS

    def _uses_at(self, slots: Longs, positions: Ints) -> Ints:
        """What slots use at positions, as bits: bans of ids end in the middle of an answer."""
        uses = self._uses[slots]
        if np.bitwise_or.reduce(uses, initial=0) & _BANS:
            uses[positions >= self._min_end[slots]] &= ~_BANS
        return uses

    def unsupported(self, row: RowState) -> str | None:
        """Why a row cannot be sampled here; None if it can."""
        for text in () if row.adjustments is None else row.adjustments.logits_processors:
            name, _, _ = text.partition("=")
            if name not in self._processors:
                return f"the device was not given the logits processor {name!r}"
        return None

    def take_fills(self) -> tuple[Fill, ...]:
        """Work for the device's queue, before the step of whoever began since the last call."""
        fills = tuple(self._fills)
        self._fills.clear()
        return fills

    def _fill(self, pool: "_Pool", slot: int, write: Callable[[Tensor], object]) -> int:
        place = pool.places.take(slot)
        device = self.tokens.device

        def fill() -> None:
            write(pool.rows.row(place, pool.width, device))

        self._fills.append(fill)
        return place

    def _typical(self, slots: Longs, uses: Ints) -> tuple[Tensor, Tensor]:
        rows = np.flatnonzero(uses & _TYPICAL)
        at, mass = self._upload((rows, self._typical_p[slots[rows]]))
        return at, mass

    def _calls(self, slots: Longs, positions: Ints, uses: Ints) -> ProcessorCalls:
        rows = np.flatnonzero(uses & _CUSTOM)
        calls = self._custom.calls(rows, slots[rows], positions[rows])
        return ProcessorCalls(tuple(calls), self._processors)

    def _forbids(self, slots: Longs, uses: Ints) -> tuple[Tensor, Tensor] | None:
        rows = np.flatnonzero((uses & _CUSTOM != 0) & (uses & _BIASES != 0))
        _, biases, _ = self._pools
        at, places = self._upload((rows, biases.places.of(slots[rows])))
        return at, places

    def _bans(self, slots: Longs, positions: Ints, uses: Ints) -> tuple[Ban, ...]:
        has_words, has_ngrams = np.flatnonzero(uses & _WORDS), np.flatnonzero(uses & _NGRAMS)
        bans: list[Ban] = []
        if len(has_words):
            words = self._words.bans(has_words, slots[has_words], positions[has_words])
            bans += (WordBan.of(ends, self._upload) for ends in words)
        if len(has_ngrams):
            ngrams = self._ngrams.bans(has_ngrams, slots[has_ngrams], positions[has_ngrams])
            bans += (NgramBan.of(ends, self._upload) for ends in ngrams)
        return tuple(bans)

    # The device's half: for queued work

    def wishes(self, needs: Needs) -> Wishes:
        """What is done to the logits of a step before processors see them."""
        counts, biases, _ = self._pools
        return Wishes(
            self.lines,
            self.tokens,
            counts=counts.rows.whole if needs.has_counts else None,
            biases=biases.rows.whole if needs.has_biases else None,
        )

    def bans(self, needs: Needs, masks: RowMasks | None) -> Wishes:
        """What is done to them at last."""
        _, _, bans = self._pools
        whole = bans.rows.whole if needs.has_bans else None
        return Wishes(self.lines, self.tokens, bans=whole, masks=masks)

    def fill_all(self) -> None:
        """Have a row of each kind, though no slot has it."""
        for pool in self._pools:
            pool.rows.row(0, pool.width, self.tokens.device)

    def forbid(self, logits: Tensor, forbids: tuple[Tensor, Tensor]) -> None:
        """Make what is not allowed impossible again, in float32 logits [rows, vocab]."""
        at, places = forbids
        _, biases, _ = self._pools
        is_forbidden = biases.rows.whole[places].isnan()
        logits[at] = logits[at].masked_fill(is_forbidden, -torch.inf)


class _Pool:
    """Rows of one kind: which slot has which is the host's, what stands in them the device's."""

    def __init__(self, num_slots: int, width: int, dtype: torch.dtype) -> None:
        self.width = width
        self.places = RowPlaces(num_slots)
        self.rows = RowTable(dtype)


_NO_WISHES = Adjustments()


def _require_ids(row: RowState, wishes: Adjustments, vocab_size: int) -> None:
    """What a GPU reads or writes out of bounds breaks it for good."""
    asked = () if row.logprobs is None else row.logprobs.token_ids
    allowed = wishes.allowed_token_ids or ()
    for ids in (row.banned_ids, wishes.logit_bias, allowed, asked, *wishes.bad_words):
        if ids and (min(ids) < 0 or max(ids) >= vocab_size):
            raise IndexError(
                f"slot {row.slot} names token ids from {min(ids)} to {max(ids)}, of a vocabulary "
                f"of {vocab_size}"
            )


def _line_of(row: RowState, wishes: Adjustments) -> Ints:
    """A slot's line, but for the rows it names."""
    words = np.zeros(line.WIDTH.value, dtype=np.int32)
    numbers = words.view(np.float32)
    numbers[line.TEMPERATURE.value] = min(row.temperature, FLOAT32_MAX)
    numbers[line.TOP_P.value] = row.top_p
    least = np.float32(row.min_p)
    numbers[line.LEAST_LOG_SHARE.value] = np.log(least) if least > 0 else -np.inf
    words[line.TOP_K.value] = min(row.top_k, INT32_MAX)
    words.view(np.int64)[line.SEED.value // 2] = row.seed
    words[line.INDEX.value] = row.index
    words[line.MIN_END.value] = row.min_end
    words[line.PROMPT.value] = row.num_prompt_tokens
    if wishes.repetition_penalty == 1:  # the prompt need not be known
        words[line.COUNTED.value] = row.num_prompt_tokens
    numbers[line.REPETITION.value] = wishes.repetition_penalty
    numbers[line.FREQUENCY.value] = wishes.frequency_penalty
    numbers[line.PRESENCE.value] = wishes.presence_penalty
    words[[line.COUNTS_ROW.value, line.BIASES_ROW.value, line.BANS_ROW.value]] = -1
    return words


def _biases_of(wishes: Adjustments, upload: Upload) -> Callable[[Tensor], object]:
    """Writes a row of biases; what cannot be sampled is NaN."""
    allowed = wishes.allowed_token_ids
    ids, values, allowed_ids = upload(
        (
            np.array(list(wishes.logit_bias), dtype=np.int64),
            np.array(list(wishes.logit_bias.values()), dtype=np.float32),
            np.array(allowed or (), dtype=np.int64),
        )
    )

    def write(row: Tensor) -> None:
        if allowed is None:
            row.zero_()
        else:
            row.fill_(torch.nan).index_fill_(0, allowed_ids, 0.0)
        row.index_add_(0, ids, values)

    return write


def _bits_of(token_ids: tuple[int, ...], num_words: int) -> NDArray[np.int32]:
    """The bits of some tokens, as kernels look them up.  # [num_words]"""
    bits = np.zeros(num_words * 32, dtype=np.bool_)
    bits[list(token_ids)] = True
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)
