"""What the kernels that find cuts share: scaled logits, their order, pivots, and the search."""

import triton
import triton.language as tl

from .gumbel import LEAST_TEMPERATURE
from .sampling_line import TEMPERATURE, TOP_K, TOP_P

PIVOTS = tl.constexpr(16)
WIDEST = tl.constexpr(40.0)  # below the peak, where pivots lie; the last one is minus infinity
ONE = tl.constexpr(2.0**44)  # the weight of the likeliest token; 2**18 of them fit an int64
LEAST = tl.constexpr(LEAST_TEMPERATURE)


@triton.jit
def scaled_logits(logits_ptr, token, vocab, temperature):
    """Logits over temperature; minus infinity beyond the vocabulary, infinity for NaN."""
    value = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    value = tl.where(value == value, value, float("inf"))
    value = tl.div_rn(value, temperature)
    return tl.where(value == 0.0, 0.0, value)  # zeros have one sign


@triton.jit
def order_of(value):
    """float32 to int32 that compare alike; `value_of` is the way back."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(order):
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(value, peak):
    return (tl.exp(value - peak) * ONE).to(tl.int64)


@triton.jit
def is_cut(line, vocab):
    """Whether a slot draws, and by top-k or top-p."""
    top_k = tl.load(line + TOP_K)
    top_p = tl.load(line + TOP_P).to(tl.float32, bitcast=True)
    temperature = tl.load(line + TEMPERATURE).to(tl.float32, bitcast=True)
    return (temperature > LEAST) & (((top_k > 0) & (top_k < vocab)) | (top_p < 1.0))


@triton.jit
def range_of(ranges_ptr, row, num_stretches, STRETCHES: tl.constexpr):
    """The largest scaled logit of a row, and how far below it pivots lie."""
    stretch = tl.arange(0, STRETCHES)
    inside = stretch < num_stretches
    at = ranges_ptr + (row * num_stretches + stretch) * 2
    peak = tl.max(tl.load(at, mask=inside, other=float("-inf")), 0)
    least = tl.min(tl.load(at + 1, mask=inside, other=float("inf")), 0)
    return peak, tl.minimum(peak - least, WIDEST)


@triton.jit
def pivots_of(peak, width):
    """Pivots in falling order.  # [PIVOTS]"""
    number = tl.arange(0, PIVOTS)
    pivot = peak - width * ((number + 1).to(tl.float32) / PIVOTS)
    pivot = tl.where(pivot == 0.0, 0.0, pivot)
    return tl.where(number == PIVOTS - 1, float("-inf"), pivot)


@triton.jit
def at_place(values, place):
    return tl.sum(tl.where(tl.arange(0, PIVOTS) == place, values, 0), 0)


@triton.jit
def at_pivot(pivots, place):
    """Minus infinity is one of them, so they cannot be summed up."""
    return tl.max(tl.where(tl.arange(0, PIVOTS) == place, pivots, float("-inf")), 0)


@triton.jit
def bracket_of(
    line,
    counts_ptr,
    weights_ptr,
    row,
    vocab,
    num_stretches,
    STRETCHES: tl.constexpr,
    BY_WEIGHT: tl.constexpr,
):
    """Which pivot the cut lies beyond (PIVOTS: none), which is not beyond the cut (-1: the peak),
    whether top-k decides, and of top-p alone: what lies beyond the second, and what is wanted."""
    stretch = tl.arange(0, STRETCHES)
    at = (row * num_stretches + stretch)[:, None] * PIVOTS + tl.arange(0, PIVOTS)[None, :]
    inside = (stretch < num_stretches)[:, None]
    counts = tl.sum(tl.load(counts_ptr + at, mask=inside, other=0), 0)
    top_k = tl.load(line + TOP_K)
    is_by_count = (top_k > 0) & (top_k < vocab) & (at_place(counts, PIVOTS - 1) >= top_k)
    low = PIVOTS - tl.sum((counts >= top_k).to(tl.int32), 0)
    low = tl.where(is_by_count, low, PIVOTS)
    high = -1
    beyond = tl.zeros([], tl.int64)
    wanted = tl.zeros([], tl.float64)
    if BY_WEIGHT:
        top_p = tl.load(line + TOP_P).to(tl.float32, bitcast=True)
        if (is_by_count == 0) & (top_p < 1.0):
            weights = tl.sum(tl.load(weights_ptr + at, mask=inside, other=0), 0)
            wanted = top_p.to(tl.float64) * at_place(weights, PIVOTS - 1).to(tl.float64)
            low = PIVOTS - tl.sum((weights.to(tl.float64) >= wanted).to(tl.int32), 0)
            high = low - 1
            beyond = at_place(weights, high)
    return low, high, is_by_count, beyond, wanted


@triton.jit
def total_at(counts_ptr, row, place, num_stretches, STRETCHES: tl.constexpr):
    stretch = tl.arange(0, STRETCHES)
    at = counts_ptr + (row * num_stretches + stretch) * PIVOTS + place
    return tl.sum(tl.load(at, mask=stretch < num_stretches, other=0), 0)


@triton.jit
def last_beyond(
    found_ptr,
    num_found,
    low,
    high,
    beyond,
    wanted,
    peak,
    BY_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The order of the largest logit beyond which there is less than wanted; it is more than `low`
    and at most `high`, beyond which there is what `beyond` says besides what was found."""
    while high - low > 1:
        middle = low + (high - low) // 2
        total = tl.zeros([BLOCK], tl.int64)
        above = tl.full([BLOCK], 0x7FFFFFFF, tl.int64)
        below = tl.full([BLOCK], -0x80000000, tl.int64)
        for first in range(0, num_found, BLOCK):
            place = first + tl.arange(0, BLOCK)
            inside = place < num_found
            order = tl.load(found_ptr + place, mask=inside, other=0)
            is_above = inside & (order > middle)
            if BY_WEIGHT:
                total += tl.where(is_above, weight_of(value_of(order), peak), 0)
            else:
                total += is_above.to(tl.int64)
            above = tl.where(is_above, tl.minimum(above, order.to(tl.int64)), above)
            is_below = inside & (order <= middle)
            below = tl.where(is_below, tl.maximum(below, order.to(tl.int64)), below)
        if (beyond + tl.sum(total, 0)).to(tl.float64) >= wanted:
            low = tl.min(above, 0) - 1  # nothing lies between: skip to what there is
        else:
            high = tl.max(below, 0)
    return high


@triton.jit
def weight_beyond(found_ptr, num_found, low, peak, BLOCK: tl.constexpr):
    """The weight of all that was found beyond an order."""
    total = tl.zeros([BLOCK], tl.int64)
    for first in range(0, num_found, BLOCK):
        place = first + tl.arange(0, BLOCK)
        inside = place < num_found
        order = tl.load(found_ptr + place, mask=inside, other=0)
        total += tl.where(inside & (order > low), weight_of(value_of(order), peak), 0)
    return tl.sum(total, 0)
