"""The least logit that each row may sample by top-k, top-p and min-p, found without a sort.

The cut is that of `gpu/cuts.py`: of top-k the k-th largest; of top-p the least value whose likelier
values together weigh less than p, by the weights of what top-k left. Either is the largest value
beyond which there is not enough yet, and how much lies beyond a value is a plain sum. So the range
is narrowed: each stretch of the vocabulary tells how much lies beyond a few pivots (`survey`), what
lies between the two that matter is written side by side (`gather`), and bisected (`search`).

Weights are whole numbers of 2**-44 of the likeliest token's, so a sum has the same bits in any
order: a row's cut does not depend on what is sampled beside it.
"""

from collections.abc import Iterator

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cuts import cuts_of
from .build import Build, wide_enough
from .cut_parts import (
    LEAST,
    PIVOTS,
    at_pivot,
    bracket_of,
    is_cut,
    last_beyond,
    order_of,
    pivots_of,
    range_of,
    scaled_logits,
    total_at,
    value_of,
    weight_beyond,
    weight_of,
)
from .gumbel import LEAST_TEMPERATURE
from .sampling_line import LEAST_LOG_SHARE, TEMPERATURE, TOP_K, TOP_P, WIDTH, floats, ints


@triton.jit
def ranges_kernel(
    logits_ptr,
    slots_ptr,
    lines_ptr,
    ranges_ptr,
    logits_stride,
    vocab,
    BLOCK: tl.constexpr,
):
    """Program (row, stretch): its largest scaled logit, and its least that is finite."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        return
    line = lines_ptr + slot.to(tl.int64) * WIDTH
    temperature = tl.load(line + TEMPERATURE).to(tl.float32, bitcast=True)
    if temperature <= LEAST:
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logits_ptr += row.to(tl.int64) * logits_stride
    value = scaled_logits(logits_ptr, token, vocab, temperature)
    at = ranges_ptr + (row * tl.num_programs(1) + tl.program_id(1)) * 2
    tl.store(at, tl.max(value, 0))
    tl.store(at + 1, tl.min(tl.where(value > float("-inf"), value, float("inf")), 0))


@triton.jit
def survey_kernel(
    logits_ptr,
    slots_ptr,
    lines_ptr,
    ranges_ptr,
    counts_ptr,
    weights_ptr,
    logits_stride,
    vocab,
    num_stretches,
    STRETCHES: tl.constexpr,
    SLICE: tl.constexpr,
    SLICES: tl.constexpr,
    BY_WEIGHT: tl.constexpr,
):
    """Program (row, stretch): how many of its tokens lie beyond each pivot, and their weight."""
    row = tl.program_id(0)
    stretch = tl.program_id(1)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        return
    line = lines_ptr + slot.to(tl.int64) * WIDTH
    if is_cut(line, vocab) == 0:
        return
    temperature = tl.load(line + TEMPERATURE).to(tl.float32, bitcast=True)
    peak, width = range_of(ranges_ptr, row, num_stretches, STRETCHES)
    if (peak == float("inf")) | (peak == float("-inf")):
        return  # it cannot be drawn
    logits_ptr += row.to(tl.int64) * logits_stride
    pivots = pivots_of(peak, width)
    counts = tl.zeros([SLICE, PIVOTS], tl.int32)
    weights = tl.zeros([SLICE, PIVOTS], tl.int64)
    for number in range(SLICES):
        token = (stretch * SLICES + number) * SLICE + tl.arange(0, SLICE)
        value = scaled_logits(logits_ptr, token, vocab, temperature)
        is_beyond = value[:, None] > pivots[None, :]
        counts += is_beyond.to(tl.int32)
        if BY_WEIGHT:
            weights += tl.where(is_beyond, weight_of(value, peak)[:, None], 0)
    at = (row * num_stretches + stretch) * PIVOTS + tl.arange(0, PIVOTS)
    tl.store(counts_ptr + at, tl.sum(counts, 0))
    if BY_WEIGHT:
        tl.store(weights_ptr + at, tl.sum(weights, 0))


@triton.jit
def gather_kernel(
    logits_ptr,
    slots_ptr,
    lines_ptr,
    ranges_ptr,
    counts_ptr,
    weights_ptr,
    found_ptr,
    logits_stride,
    vocab,
    num_stretches,
    STRETCHES: tl.constexpr,
    BLOCK: tl.constexpr,
    BY_WEIGHT: tl.constexpr,
):
    """Program (row, stretch): the order of its logits between the two pivots, behind those of the
    stretches before it."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        return
    line = lines_ptr + slot.to(tl.int64) * WIDTH
    if is_cut(line, vocab) == 0:
        return
    temperature = tl.load(line + TEMPERATURE).to(tl.float32, bitcast=True)
    peak, width = range_of(ranges_ptr, row, num_stretches, STRETCHES)
    if (peak == float("inf")) | (peak == float("-inf")):
        return
    low, high, _, _, _ = bracket_of(
        line, counts_ptr, weights_ptr, row, vocab, num_stretches, STRETCHES, BY_WEIGHT
    )
    if low == PIVOTS:
        return
    before = tl.arange(0, STRETCHES)
    is_before = before < tl.program_id(1)
    at = counts_ptr + (row * num_stretches + before) * PIVOTS
    first = tl.sum(tl.load(at + low, mask=is_before, other=0), 0)
    if high >= 0:
        first -= tl.sum(tl.load(at + high, mask=is_before, other=0), 0)
    pivots = pivots_of(peak, width)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logits_ptr += row.to(tl.int64) * logits_stride
    value = scaled_logits(logits_ptr, token, vocab, temperature)
    least = at_pivot(pivots, low)
    most = tl.where(high >= 0, at_pivot(pivots, high), peak)
    is_found = (value > least) & (value <= most)
    place = first + tl.cumsum(is_found.to(tl.int32), 0) - 1
    tl.store(found_ptr + row.to(tl.int64) * vocab + place, order_of(value), mask=is_found)


@triton.jit
def search_kernel(
    slots_ptr,
    lines_ptr,
    ranges_ptr,
    counts_ptr,
    weights_ptr,
    found_ptr,
    cuts_ptr,
    vocab,
    num_stretches,
    STRETCHES: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_TOP: tl.constexpr,
    BY_WEIGHT: tl.constexpr,
):
    """One program per row: its cut."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        return
    tl.store(cuts_ptr + row, float("-inf"))
    line = lines_ptr + slot.to(tl.int64) * WIDTH
    if tl.load(line + TEMPERATURE).to(tl.float32, bitcast=True) <= LEAST:
        return
    peak, width = range_of(ranges_ptr, row, num_stretches, STRETCHES)
    if (peak == float("inf")) | (peak == float("-inf")):
        return
    cut = peak + tl.load(line + LEAST_LOG_SHARE).to(tl.float32, bitcast=True)
    if HAS_TOP:
        if is_cut(line, vocab):
            found_ptr += row.to(tl.int64) * vocab
            low_at, high_at, is_by_count, beyond, wanted = bracket_of(
                line, counts_ptr, weights_ptr, row, vocab, num_stretches, STRETCHES, BY_WEIGHT
            )
            if low_at < PIVOTS:
                pivots = pivots_of(peak, width)
                low = order_of(at_pivot(pivots, low_at)).to(tl.int64)
                most = tl.where(high_at >= 0, at_pivot(pivots, high_at), peak)
                high = order_of(most).to(tl.int64)
                num_found = total_at(counts_ptr, row, low_at, num_stretches, STRETCHES)
                if high_at >= 0:
                    num_found -= total_at(counts_ptr, row, high_at, num_stretches, STRETCHES)
                top = top_cut(
                    line,
                    found_ptr,
                    num_found,
                    low,
                    high,
                    is_by_count,
                    beyond,
                    wanted,
                    peak,
                    BLOCK,
                    BY_WEIGHT,
                )
                cut = tl.maximum(cut, value_of(top.to(tl.int32)))
    tl.store(cuts_ptr + row, cut)


@triton.jit
def top_cut(
    line,
    found_ptr,
    num_found,
    low,
    high,
    is_by_count,
    beyond,
    wanted,
    peak,
    BLOCK: tl.constexpr,
    BY_WEIGHT: tl.constexpr,
):
    """The order of the least logit that top-k leaves, and then top-p of what it left; between low
    and high, as `last_beyond` has it."""
    if is_by_count:
        top_k = tl.load(line + TOP_K).to(tl.float64)
        high = last_beyond(found_ptr, num_found, low, high, beyond, top_k, peak, False, BLOCK)
    if BY_WEIGHT:
        top_p = tl.load(line + TOP_P).to(tl.float32, bitcast=True)
        if top_p < 1.0:
            if is_by_count:
                low = high - 1
                wanted = top_p.to(tl.float64) * weight_beyond(
                    found_ptr, num_found, low, peak, BLOCK
                ).to(tl.float64)
                high = order_of(peak).to(tl.int64)
            high = last_beyond(found_ptr, num_found, low, high, beyond, wanted, peak, True, BLOCK)
    return high


def find_cuts(
    logits: Tensor, slots: Tensor, lines: Tensor, *, has_top: bool, has_top_p: bool
) -> Tensor:
    """The least logit over temperature that each row of logits [rows, vocab] may sample, minus
    infinity where all may be.  # [rows] of float32

    Without `has_top` no row uses top-k or top-p, without `has_top_p` none uses top-p. Slot -1 is
    padding, whose cut is undefined, as that of a row is whose logits are not numbers. The memory
    that it takes meanwhile is that of the logits in float32.
    """
    rows, vocab = logits.shape
    cuts = logits.new_empty(rows, dtype=torch.float32)
    if not rows:
        return cuts
    num_stretches = triton.cdiv(vocab, _BLOCK)
    ranges = logits.new_empty((rows, num_stretches, 2), dtype=torch.float32)
    grid, stride = (rows, num_stretches), logits.stride(0)
    ranges_kernel[grid](logits, slots, lines, ranges, stride, vocab, BLOCK=_BLOCK, **_OPTIONS)
    gathered = (slots, slots, slots)  # never read where there is no top
    if has_top:
        gathered = _gathered(logits, slots, lines, ranges, has_top_p)
    search_kernel[(rows,)](
        slots,
        lines,
        ranges,
        *gathered,
        cuts,
        vocab,
        num_stretches,
        STRETCHES=wide_enough(num_stretches),
        BLOCK=_SEARCH_BLOCK,
        HAS_TOP=has_top,
        BY_WEIGHT=has_top_p,
        **_OPTIONS,
    )
    return cuts


def _gathered(
    logits: Tensor, slots: Tensor, lines: Tensor, ranges: Tensor, has_top_p: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What lies beyond pivots in each stretch, by number and by weight, and the order of the logits
    between the two that matter."""
    rows, vocab = logits.shape
    num_stretches = ranges.shape[1]
    shape = (rows, num_stretches, PIVOTS.value)
    counts = logits.new_empty(shape, dtype=torch.int32)
    weights = logits.new_empty(shape if has_top_p else 1, dtype=torch.int64)
    found = logits.new_empty((rows, vocab), dtype=torch.int32)
    surveyed = (logits, slots, lines, ranges, counts, weights)
    sizes = (logits.stride(0), vocab, num_stretches)
    how = {"STRETCHES": wide_enough(num_stretches), "BY_WEIGHT": has_top_p, **_OPTIONS}
    survey_kernel[(rows, num_stretches)](*surveyed, *sizes, **_SLICES, **how)
    gather_kernel[(rows, num_stretches)](*surveyed, found, *sizes, BLOCK=_BLOCK, **how)
    return counts, weights, found


def find_cuts_reference(
    logits: Tensor, slots: Tensor, lines: Tensor, *, has_top: bool, has_top_p: bool
) -> Tensor:
    """As the processor's device cuts."""
    chosen = slots.clamp(min=0).long()
    heat = floats(lines, TEMPERATURE)[chosen]
    draws = heat > LEAST_TEMPERATURE
    scaled = logits.float() / torch.where(draws, heat, 1.0).unsqueeze(1)
    top_k, top_p = ints(lines, TOP_K)[chosen].numpy(), floats(lines, TOP_P)[chosen].numpy()
    off = np.zeros(len(slots), dtype=np.float32)
    with np.errstate(invalid="ignore"):  # rows that are not numbers fail when they are drawn
        cuts = torch.from_numpy(
            cuts_of(scaled.numpy(), top_k if has_top else 0 * top_k, top_p, off)
        )
    least = scaled.amax(dim=1) + floats(lines, LEAST_LOG_SHARE)[chosen]
    return torch.where(draws, torch.maximum(cuts, least), float("-inf"))


_BLOCK = 4096
_SLICES = {"SLICE": 256, "SLICES": _BLOCK // 256}
_SEARCH_BLOCK = 2048
_OPTIONS = {"num_warps": 8}


def _builds() -> Iterator[Build]:
    vocab = 151_936
    stretches = {"STRETCHES": wide_enough(triton.cdiv(vocab, _BLOCK))}
    tables = {
        **dict.fromkeys(("slots_ptr", "lines_ptr", "counts_ptr", "found_ptr"), "*i32"),
        **dict.fromkeys(("ranges_ptr", "cuts_ptr"), "*fp32"),
        "weights_ptr": "*i64",
        **dict.fromkeys(("logits_stride", "vocab", "num_stretches"), "i32"),
    }
    kernels = (
        (ranges_kernel, {"BLOCK": _BLOCK}),
        (survey_kernel, {**stretches, **_SLICES, "BY_WEIGHT": True}),
        (gather_kernel, {**stretches, "BLOCK": _BLOCK, "BY_WEIGHT": True}),
    )
    for kind in ("fp32", "bf16"):
        for kernel, constants in kernels:
            yield Build(
                name=f"{kind} logits",
                kernel=kernel,
                types={**tables, "logits_ptr": f"*{kind}"},
                constants=constants,
                aligned=("logits_ptr", "lines_ptr", "logits_stride", "vocab"),
                options=_OPTIONS,
                moves_wide=kernel is not survey_kernel,  # whose slices give a thread one logit
            )
    yield Build(
        name="151,936 tokens",
        kernel=search_kernel,
        types=tables,
        constants={**stretches, "BLOCK": _SEARCH_BLOCK, "HAS_TOP": True, "BY_WEIGHT": True},
        aligned=("lines_ptr", "found_ptr", "vocab"),
        options=_OPTIONS,
        moves_wide=False,
    )


BUILDS = tuple(_builds())
