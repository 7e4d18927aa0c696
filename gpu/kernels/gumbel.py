"""One token per row: greedy, or the largest of logit over temperature plus Gumbel noise.

The noise is that of `noise.py`, word for word: the same tokens as on the processor but where two
candidates lie within the rounding of a logarithm. Logits are read once; the first kernel finds the
best of every stretch of the vocabulary, the second the best of those.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..draws import draw
from ..noise import row_keys
from ..row_failures import NONE_LEFT, NOT_NUMBERS
from .build import Build, wide_enough

LEAST_TEMPERATURE = 1e-5  # below it the likeliest token wins for certain
_LEAST_LOGIT = float(np.finfo(np.float32).min)  # what is banned is below it


@triton.jit
def mixed(word):
    """Scramble 32-bit words; a bijection."""
    word ^= word >> 16
    word *= 0x7FEB352D
    word ^= word >> 15
    word *= 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def row_key(seed, index, position):
    """The two keys of a row that samples, from an int64 and two int32."""
    low = seed.to(tl.uint32)
    high = (seed >> 32).to(tl.uint32)
    which = index.to(tl.uint32)
    place = position.to(tl.uint32)
    key0 = mixed(mixed(mixed(mixed(low) ^ high) ^ which) ^ place)
    key1 = mixed(mixed(mixed(place ^ 0x9E3779B9) ^ low) ^ (high + which))
    return key0, key1


@triton.jit
def gumbel_noise(bits):
    """Random words to standard Gumbel noise."""
    uniform = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2**-32
    # -log1p(-uniform) of what is left after rounding 1 - uniform: exact where uniform is small.
    rest = 1.0 - uniform
    lost = 1.0 - rest
    exponential = tl.where(lost == 0.0, uniform, -tl.log(rest) * (uniform / lost))
    return -tl.log(exponential)


_PIECES = ("best_ptr", "token_ptr", "peak_ptr", "peak_token_ptr")
"""Pointers into memory that two have a half of each. With an odd number of stretches the second
half is aligned for every other number of rows only, and would have a kernel of its own."""


@triton.jit(do_not_specialize_on_alignment=_PIECES)
def gumbel_candidates_kernel(
    logits_ptr,
    slots_ptr,
    positions_ptr,
    temperature_ptr,
    seed_ptr,
    index_ptr,
    cuts_ptr,
    best_ptr,
    token_ptr,
    peak_ptr,
    peak_token_ptr,
    logits_stride,
    column_stride,
    seed_stride,
    vocab,
    HAS_CUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    LEAST: tl.constexpr,  # temperature
    LEAST_LOGIT: tl.constexpr,
):
    """Program (row, stretch): its best value and largest logit, and the tokens that have them."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    logits = logits_ptr + row.to(tl.int64) * logits_stride + token
    value = tl.load(logits, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.where(value == value, value, float("inf"))  # what is not a number wins, and shows
    peak, peak_place = tl.max(value, 0, return_indices=True)
    stretch = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(peak_ptr + stretch, peak)
    tl.store(peak_token_ptr + stretch, tl.program_id(1) * BLOCK + peak_place)
    slot = slot.to(tl.int64)
    temperature = tl.load(temperature_ptr + slot * column_stride)
    if temperature > LEAST:
        seed = tl.load(seed_ptr + slot * seed_stride)
        index = tl.load(index_ptr + slot * column_stride)
        key0, key1 = row_key(seed, index, tl.load(positions_ptr + row))
        bits = mixed(mixed(token.to(tl.uint32) ^ key0) ^ key1)
        value = tl.div_rn(value, temperature)
        is_kept = value >= LEAST_LOGIT
        if HAS_CUTS:
            is_kept = is_kept & (value >= tl.load(cuts_ptr + row))
        # Noise may be minus infinity, and what is kept must be above what is not.
        noisy = tl.maximum(value + gumbel_noise(bits), LEAST_LOGIT)
        best, place = tl.max(tl.where(is_kept, noisy, float("-inf")), 0, return_indices=True)
        tl.store(best_ptr + stretch, best)
        tl.store(token_ptr + stretch, tl.program_id(1) * BLOCK + place)


@triton.jit(do_not_specialize_on_alignment=_PIECES)
def gumbel_choice_kernel(
    best_ptr,
    token_ptr,
    peak_ptr,
    peak_token_ptr,
    slots_ptr,
    temperature_ptr,
    sampled_ptr,
    column_stride,
    num_stretches,
    STRETCHES: tl.constexpr,
    LEAST: tl.constexpr,  # temperature
    NOT_NUMBERS: tl.constexpr,
    NONE_LEFT: tl.constexpr,
):
    """One program per row."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        tl.store(sampled_ptr + row, 0)
        return
    stretch = tl.arange(0, STRETCHES)
    inside = stretch < num_stretches
    place = row * num_stretches + stretch
    largest = tl.load(peak_ptr + place, mask=inside, other=float("-inf"))
    peak, winner = tl.max(largest, 0, return_indices=True)
    token = tl.load(peak_token_ptr + row * num_stretches + winner)
    temperature = tl.load(temperature_ptr + slot.to(tl.int64) * column_stride)
    if temperature > LEAST:
        if tl.div_rn(peak, temperature) < float("inf"):  # else huge logits would be infinite
            best = tl.load(best_ptr + place, mask=inside, other=float("-inf"))
            _, winner = tl.max(best, 0, return_indices=True)
            token = tl.load(token_ptr + row * num_stretches + winner)
    token = tl.where(peak == float("inf"), NOT_NUMBERS, token)
    token = tl.where(peak == float("-inf"), NONE_LEFT, token)
    tl.store(sampled_ptr + row, token)


def sample_gumbel(
    logits: Tensor,
    *,
    slots: Tensor,
    positions: Tensor,
    temperature: Tensor,
    seed: Tensor,
    index: Tensor,
    cuts: Tensor | None = None,
) -> Tensor:
    """A token id for each row of logits [rows, vocab], rows at any stride; NOT_NUMBERS where they
    are not numbers, NONE_LEFT where all are minus infinity, 0 for padding (slot -1).  # [rows]

    Slots and the positions that the samples take are [rows] of int32; temperature (float32), seed
    (int64) and index (int32) are [slots], the first and the last at one stride. Cuts [rows] are the
    least logits over temperature that may be drawn.
    """
    rows, vocab = logits.shape
    sampled = logits.new_empty(rows, dtype=torch.int32)
    if rows:
        num_stretches = triton.cdiv(vocab, _CANDIDATE_CONSTANTS["BLOCK"])
        best = logits.new_empty((2, rows, num_stretches), dtype=torch.float32)
        tokens = logits.new_empty((2, rows, num_stretches), dtype=torch.int32)
        column_stride = temperature.stride(0)
        gumbel_candidates_kernel[(rows, num_stretches)](
            logits,
            slots,
            positions,
            temperature,
            seed,
            index,
            best if cuts is None else cuts,  # never read where there are none
            best[0],
            tokens[0],
            best[1],
            tokens[1],
            logits.stride(0),
            column_stride,
            seed.stride(0),
            vocab,
            HAS_CUTS=cuts is not None,
            **_CANDIDATE_CONSTANTS,
            **_OPTIONS,
        )
        gumbel_choice_kernel[(rows,)](
            best[0],
            tokens[0],
            best[1],
            tokens[1],
            slots,
            temperature,
            sampled,
            column_stride,
            num_stretches,
            **_choice_constants(vocab),
            num_warps=1,
        )
    return sampled


def sample_gumbel_reference(
    logits: Tensor,
    *,
    slots: Tensor,
    positions: Tensor,
    temperature: Tensor,
    seed: Tensor,
    index: Tensor,
    cuts: Tensor | None = None,
) -> Tensor:
    """As the processor's device samples: in numpy, from the definition in `noise.py`."""
    values, chosen = logits.float().numpy(), slots.clamp(min=0).numpy()
    heat = temperature.numpy()[chosen]
    sampled = values.argmax(axis=1).astype(np.int32)
    peaks = values.max(axis=1)  # NaN wins
    is_random = (heat > LEAST_TEMPERATURE) & np.isfinite(peaks)
    is_random &= np.isfinite(peaks / np.where(is_random, heat, 1))
    if is_random.any():
        scaled = values[is_random] / heat[is_random, None]
        keys = row_keys(seed.numpy()[chosen], positions.numpy(), index.numpy()[chosen])
        least = -np.inf if cuts is None else cuts.numpy()[is_random, None]
        is_kept = scaled >= np.maximum(least, _LEAST_LOGIT)
        sampled[is_random] = draw(scaled, is_kept, keys[0][is_random], keys[1][is_random])
    sampled[~np.isfinite(peaks)] = NOT_NUMBERS
    sampled[peaks == -np.inf] = NONE_LEFT
    sampled[slots.numpy() < 0] = 0
    return torch.from_numpy(sampled)


_CANDIDATE_CONSTANTS = {"BLOCK": 4096, "LEAST": LEAST_TEMPERATURE, "LEAST_LOGIT": _LEAST_LOGIT}
_OPTIONS = {"num_warps": 8}


def _choice_constants(vocab: int) -> dict[str, float]:
    return {
        "LEAST": LEAST_TEMPERATURE,
        "STRETCHES": wide_enough(triton.cdiv(vocab, int(_CANDIDATE_CONSTANTS["BLOCK"]))),
        "NOT_NUMBERS": NOT_NUMBERS,
        "NONE_LEFT": NONE_LEFT,
    }


_COLUMNS = {
    **dict.fromkeys(("slots_ptr", "positions_ptr", "index_ptr"), "*i32"),
    **dict.fromkeys(("token_ptr", "peak_token_ptr", "sampled_ptr"), "*i32"),
    **dict.fromkeys(("temperature_ptr", "cuts_ptr", "best_ptr", "peak_ptr"), "*fp32"),
    "seed_ptr": "*i64",
    **dict.fromkeys(("logits_stride", "column_stride", "seed_stride"), "i32"),
    **dict.fromkeys(("vocab", "num_stretches"), "i32"),
}
BUILDS = (
    *(
        Build(
            name=f"{kind} logits" + (", cuts" if has_cuts else ""),
            kernel=gumbel_candidates_kernel,
            types={**_COLUMNS, "logits_ptr": f"*{kind}"},
            constants={**_CANDIDATE_CONSTANTS, "HAS_CUTS": has_cuts},
            aligned=("logits_ptr", "logits_stride", "vocab"),
            options=_OPTIONS,
        )
        for kind in ("fp32", "bf16")
        for has_cuts in (False, True)
    ),
    Build(
        name="151,936 tokens",
        kernel=gumbel_choice_kernel,
        types=_COLUMNS,
        constants=_choice_constants(151_936),
        aligned=(),
        options={"num_warps": 1},
        moves_wide=False,
    ),
)
