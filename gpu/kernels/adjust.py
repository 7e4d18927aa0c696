"""What requests do to their logits in one pass: penalties, biases, allowed ids, bans, grammars.

How often each token stands in a slot's answer is counted in a row of the vocabulary's width that
takes in what the slot's row of tokens has gained since, so the host never sends a token for it.
The rest of a slot's wishes lies in rows of the same kind, in pools that its line names.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import Build
from .sampling_line import (
    BANS_ROW,
    BIASES_ROW,
    COUNTED,
    COUNTS_ROW,
    FREQUENCY,
    MIN_END,
    PRESENCE,
    PROMPT,
    REPETITION,
    WIDTH,
    floats,
    ints,
)

IN_PROMPT = tl.constexpr(1 << 30)  # the bit of a count that says: it stands in the prompt
MOST_SAMPLES = tl.constexpr(64)  # of a slot in a step
COUNTS, BIASES, BANS = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4)  # parts of a pass


@dataclass(frozen=True, slots=True)
class RowMasks:
    """What grammars allow: bit i % 32 of word i // 32 is set where token i may be sampled."""

    words: Tensor  # [masks, words] of int32; none beyond the last word
    rows: Tensor  # [rows] of int32: the mask of each row; -1: none


@dataclass(frozen=True, slots=True)
class Wishes:
    """Lines of slots and the rows they name; None where no row of the step has any."""

    lines: Tensor  # [slots, WIDTH] of int32
    tokens: Tensor  # [slots, positions] of int32
    counts: Tensor | None = None  # [pool, vocab] of int32
    biases: Tensor | None = None  # [pool, vocab] of float32; NaN: cannot be sampled
    bans: Tensor | None = None  # [pool, words] of int32: bits of what is banned before MIN_END
    masks: RowMasks | None = None

    @property
    def are_none(self) -> bool:
        return all(wish is None for wish in (self.counts, self.biases, self.bans, self.masks))


@triton.jit
def rows_before(slots_ptr, row, slot, MOST_SAMPLES: tl.constexpr):
    """How many rows of the same slot stand before this one: its drafts, which this one follows."""
    before = row - 1 - tl.arange(0, MOST_SAMPLES)
    return tl.sum((tl.load(slots_ptr + before, mask=before >= 0, other=-1) == slot).to(tl.int32), 0)


@triton.jit(do_not_specialize=("tokens_stride",))
def count_kernel(
    slots_ptr,
    positions_ptr,
    lines_ptr,
    tokens_ptr,
    counts_ptr,
    tokens_stride,
    vocab,
    BLOCK: tl.constexpr,
):
    """One program per row; the first row of a slot takes in what stands before its position."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        return
    line = lines_ptr + slot.to(tl.int64) * WIDTH
    place = tl.load(line + COUNTS_ROW)
    if place < 0:
        return
    if rows_before(slots_ptr, row, slot, MOST_SAMPLES) > 0:
        return
    prompt = tl.load(line + PROMPT)
    start = tl.load(line + COUNTED)
    end = tl.load(positions_ptr + row)
    tokens_ptr += slot.to(tl.int64) * tokens_stride
    counts_ptr += place.to(tl.int64) * vocab
    for first in range(start, end, BLOCK):
        position = first + tl.arange(0, BLOCK)
        inside = position < end
        token = tl.load(tokens_ptr + position, mask=inside, other=0)
        tl.atomic_or(counts_ptr + token, IN_PROMPT, mask=inside & (position < prompt))
        tl.atomic_add(counts_ptr + token, 1, mask=inside & (position >= prompt))
    tl.debug_barrier()  # every warp has read where to begin
    tl.store(line + COUNTED, end)


@triton.jit(do_not_specialize=("tokens_stride", "ban_words", "mask_words", "parts"))
def adjust_kernel(
    logits_ptr,
    out_ptr,
    slots_ptr,
    positions_ptr,
    lines_ptr,
    tokens_ptr,
    counts_ptr,
    biases_ptr,
    bans_ptr,
    mask_words_ptr,
    mask_rows_ptr,
    logits_stride,
    out_stride,
    tokens_stride,
    vocab,
    ban_words,
    mask_words,
    parts,  # what is done, as bits
    HAS_MASKS: tl.constexpr,
    IN_PLACE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (row, stretch of the vocabulary). Rows that wish nothing are only copied, and not
    even that in place. What a step does is no constant: whoever is first to wish something new
    would wait for a compiler, and all others with it."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        return
    line = lines_ptr + slot.to(tl.int64) * WIDTH
    position = tl.load(positions_ptr + row)
    counts_row = tl.where((parts & COUNTS) != 0, tl.load(line + COUNTS_ROW), -1)
    biases_row = tl.where((parts & BIASES) != 0, tl.load(line + BIASES_ROW), -1)
    is_early = ((parts & BANS) != 0) & (position < tl.load(line + MIN_END))
    bans_row = tl.where(is_early, tl.load(line + BANS_ROW), -1)
    mask_row = tl.full([], -1, tl.int32)
    if HAS_MASKS:
        mask_row = tl.load(mask_rows_ptr + row)
    if IN_PLACE:
        if (counts_row < 0) & (biases_row < 0) & (bans_row < 0) & (mask_row < 0):
            return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    value = tl.load(logits_ptr + row.to(tl.int64) * logits_stride + token, mask=inside, other=0.0)
    value = value.to(tl.float32)
    if counts_row >= 0:
        at = counts_ptr + counts_row.to(tl.int64) * vocab + token
        known = tl.load(at, mask=inside, other=0)
        count = known & (IN_PROMPT - 1)
        drafted = tokens_ptr + slot.to(tl.int64) * tokens_stride + position
        for back in range(rows_before(slots_ptr, row, slot, MOST_SAMPLES)):
            count += (tl.load(drafted - 1 - back) == token).to(tl.int32)
        value = penalised(value, (known | count) != 0, count, line)
    if biases_row >= 0:
        at = biases_ptr + biases_row.to(tl.int64) * vocab + token
        bias = tl.load(at, mask=inside, other=0.0)
        value = tl.where(bias == bias, value + bias, float("-inf"))
    if bans_row >= 0:
        is_banned = bits_of(bans_ptr + bans_row.to(tl.int64) * ban_words, token, ban_words)
        value = tl.where(is_banned, float("-inf"), value)
    if HAS_MASKS:
        if mask_row >= 0:
            is_allowed = bits_of(
                mask_words_ptr + mask_row.to(tl.int64) * mask_words, token, mask_words
            )
            value = tl.where(is_allowed, value, float("-inf"))
    tl.store(out_ptr + row.to(tl.int64) * out_stride + token, value, mask=inside)


@triton.jit
def penalised(value, is_known, count, line):
    """Logits after the penalties of a slot's line."""
    repetition = tl.load(line + REPETITION).to(tl.float32, bitcast=True)
    repeated = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
    value = tl.where(is_known, repeated, value)
    value -= tl.load(line + FREQUENCY).to(tl.float32, bitcast=True) * count.to(tl.float32)
    presence = tl.load(line + PRESENCE).to(tl.float32, bitcast=True)
    return tl.where(count > 0, value - presence, value)


@triton.jit
def bits_of(words_ptr, token, num_words):
    """Whether the bit of each token is set; not beyond the last word."""
    place = token // 32
    word = tl.load(words_ptr + place, mask=place < num_words, other=0)
    return ((word >> (token % 32)) & 1) != 0


def count_tokens(slots: Tensor, positions: Tensor, wishes: Wishes) -> None:
    """Take what slots [rows] say before these positions into their counts. The rows of a slot
    stand together, in order, and the first one's position was never passed by an earlier step."""
    if len(slots) and wishes.counts is not None:
        count_kernel[(len(slots),)](
            slots,
            positions,
            wishes.lines,
            wishes.tokens,
            wishes.counts,
            wishes.tokens.stride(0),
            wishes.counts.shape[1],
            **_COUNT_CONSTANTS,
            **_COUNT_OPTIONS,
        )


def adjust(logits: Tensor, slots: Tensor, positions: Tensor, wishes: Wishes) -> Tensor:
    """Logits [rows, vocab] as requests want them, in float32: in place if they are that already.
    Slot -1 is padding, whose row then holds anything."""
    rows, vocab = logits.shape
    is_in_place = logits.dtype == torch.float32
    out = logits if is_in_place else torch.empty_like(logits, dtype=torch.float32)
    if rows:
        masks = wishes.masks
        adjust_kernel[(rows, triton.cdiv(vocab, _BLOCK))](
            logits,
            out,
            slots,
            positions,
            wishes.lines,
            wishes.tokens,
            _or(wishes.counts, slots),
            _or(wishes.biases, out),
            _or(wishes.bans, slots),
            slots if masks is None else masks.words,
            slots if masks is None else masks.rows,
            logits.stride(0),
            out.stride(0),
            wishes.tokens.stride(0),
            vocab,
            triton.cdiv(vocab, 32),
            0 if masks is None else masks.words.shape[1],
            _parts(wishes),
            HAS_MASKS=masks is not None,
            IN_PLACE=is_in_place,
            BLOCK=_BLOCK,
            **_OPTIONS,
        )
    return out


def _or(pool: Tensor | None, otherwise: Tensor) -> Tensor:
    """A pool, or something of its type that is never read."""
    return otherwise if pool is None else pool


def count_tokens_reference(slots: Tensor, positions: Tensor, wishes: Wishes) -> None:
    lines, counts = wishes.lines, wishes.counts
    known = set()
    for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
        place = int(ints(lines, COUNTS_ROW)[slot])
        if counts is None or slot < 0 or place < 0 or slot in known:
            continue
        known.add(slot)
        prompt = int(ints(lines, PROMPT)[slot])
        start = int(ints(lines, COUNTED)[slot])
        said = wishes.tokens[slot, :position].long()
        counts[place, said[start:prompt]] |= IN_PROMPT.value
        counts[place].index_add_(0, *_ones(said[max(start, prompt) :]))
        ints(lines, COUNTED)[slot] = position


def adjust_reference(logits: Tensor, slots: Tensor, positions: Tensor, wishes: Wishes) -> Tensor:
    out = logits.float()
    lines = wishes.lines
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        if slot < 0:
            continue
        line = lines[slot]
        if wishes.counts is not None and line[COUNTS_ROW.value] >= 0:
            known = wishes.counts[line[COUNTS_ROW.value]].clone()
            before = int((slots[:row] == slot).sum())
            drafted = wishes.tokens[slot, position - before : position].long()
            known.index_add_(0, *_ones(drafted))
            out[row] = _penalised(out[row], known, lines, slot)
        if wishes.biases is not None and line[BIASES_ROW.value] >= 0:
            bias = wishes.biases[line[BIASES_ROW.value]]
            out[row] = torch.where(bias.isnan(), float("-inf"), out[row] + bias)
        is_early = position < int(line[MIN_END.value])
        if wishes.bans is not None and is_early and line[BANS_ROW.value] >= 0:
            is_banned = _bits(wishes.bans[line[BANS_ROW.value]], logits.shape[1])
            out[row].masked_fill_(is_banned, float("-inf"))
        if wishes.masks is not None and (mask := int(wishes.masks.rows[row])) >= 0:
            is_allowed = _bits(wishes.masks.words[mask], logits.shape[1])
            out[row].masked_fill_(~is_allowed, float("-inf"))
    return out


def _penalised(values: Tensor, known: Tensor, lines: Tensor, slot: int) -> Tensor:
    count = known & (IN_PROMPT.value - 1)
    factor = floats(lines, REPETITION)[slot]
    repeated = torch.where(values > 0, values / factor, values * factor)
    values = torch.where(known != 0, repeated, values)
    values = values - floats(lines, FREQUENCY)[slot] * count
    return torch.where(count > 0, values - floats(lines, PRESENCE)[slot], values)


def _ones(token_ids: Tensor) -> tuple[Tensor, Tensor]:
    return token_ids, torch.ones(len(token_ids), dtype=torch.int32, device=token_ids.device)


def _bits(words: Tensor, vocab: int) -> Tensor:
    bits = (words.unsqueeze(1) >> torch.arange(32, device=words.device)) & 1
    found = torch.zeros(vocab, dtype=torch.bool, device=words.device)
    count = min(vocab, bits.numel())
    found[:count] = bits.view(-1)[:count].bool()
    return found


_BLOCK = 4096
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}  # as the processor rounds
_COUNT_CONSTANTS = {"BLOCK": 256}
_COUNT_OPTIONS = {"num_warps": 4}


def _parts(wishes: Wishes) -> int:
    parts = (COUNTS, wishes.counts), (BIASES, wishes.biases), (BANS, wishes.bans)
    return sum(part.value for part, pool in parts if pool is not None)


def _builds() -> Iterator[Build]:
    rows = dict.fromkeys(("slots_ptr", "positions_ptr", "lines_ptr", "tokens_ptr"), "*i32")
    yield Build(
        name="any rows",
        kernel=count_kernel,
        types={**rows, "counts_ptr": "*i32", "tokens_stride": "i32", "vocab": "i32"},
        constants=_COUNT_CONSTANTS,
        aligned=("lines_ptr", "counts_ptr", "vocab"),
        options=_COUNT_OPTIONS,
        moves_wide=False,
    )
    for kind in ("fp32", "bf16"):
        yield Build(
            name=f"everything, {kind} logits",
            kernel=adjust_kernel,
            types={
                **rows,
                "logits_ptr": f"*{kind}",
                **dict.fromkeys(("out_ptr", "biases_ptr"), "*fp32"),
                **dict.fromkeys(("counts_ptr", "bans_ptr"), "*i32"),
                **dict.fromkeys(("mask_words_ptr", "mask_rows_ptr"), "*i32"),
                **dict.fromkeys(("logits_stride", "out_stride", "tokens_stride"), "i32"),
                **dict.fromkeys(("vocab", "ban_words", "mask_words", "parts"), "i32"),
            },
            constants={
                "HAS_MASKS": True,
                "IN_PLACE": kind == "fp32",
                "BLOCK": _BLOCK,
            },
            aligned=(
                *("logits_ptr", "out_ptr", "lines_ptr", "counts_ptr", "biases_ptr", "bans_ptr"),
                *("logits_stride", "out_stride", "vocab"),
            ),
            options=_OPTIONS,
        )


BUILDS = tuple(_builds())
