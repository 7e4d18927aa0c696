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

from ..noise import gumbel, noise_bits, row_keys
from ..row_failures import NONE_LEFT, NOT_NUMBERS
from .build import Build, wide_enough

LEAST_TEMPERATURE = 1e-5  # below it the likeliest token wins for certain


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


@triton.jit
def gumbel_candidates_kernel(
    logits_ptr,
    slots_ptr,
    positions_ptr,
    temperature_ptr,
    seed_ptr,
    index_ptr,
    best_ptr,
    token_ptr,
    peak_ptr,
    logits_stride,
    vocab,
    BLOCK: tl.constexpr,
    LEAST: tl.constexpr,  # temperature
):
    """Program (row, stretch): its best value, that token, and its largest logit."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    logits = logits_ptr + row.to(tl.int64) * logits_stride + token
    value = tl.load(logits, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.where(value == value, value, float("inf"))  # what is not a number wins, and shows
    peak = tl.max(value, 0)
    temperature = tl.load(temperature_ptr + slot)
    if temperature > LEAST:
        position = tl.load(positions_ptr + row)
        key0, key1 = row_key(tl.load(seed_ptr + slot), tl.load(index_ptr + slot), position)
        bits = mixed(mixed(token.to(tl.uint32) ^ key0) ^ key1)
        value = tl.where(inside, value / temperature + gumbel_noise(bits), float("-inf"))
    best, place = tl.max(value, 0, return_indices=True)
    stretch = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_ptr + stretch, best)
    tl.store(token_ptr + stretch, tl.program_id(1) * BLOCK + place)
    tl.store(peak_ptr + stretch, peak)


@triton.jit
def gumbel_choice_kernel(
    best_ptr,
    token_ptr,
    peak_ptr,
    slots_ptr,
    sampled_ptr,
    num_stretches,
    STRETCHES: tl.constexpr,
    NOT_NUMBERS: tl.constexpr,
    NONE_LEFT: tl.constexpr,
):
    """One program per row."""
    row = tl.program_id(0)
    if tl.load(slots_ptr + row) < 0:
        tl.store(sampled_ptr + row, 0)
        return
    stretch = tl.arange(0, STRETCHES)
    inside = stretch < num_stretches
    place = row * num_stretches + stretch
    peak = tl.max(tl.load(peak_ptr + place, mask=inside, other=float("-inf")), 0)
    best = tl.load(best_ptr + place, mask=inside, other=float("-inf"))
    _, winner = tl.max(best, 0, return_indices=True)
    winner = tl.minimum(winner, num_stretches - 1)  # where infinities met, all are NaN
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
) -> Tensor:
    """A token id for each row of logits [rows, vocab], rows at any stride; NOT_NUMBERS where they
    are not numbers, NONE_LEFT where all are minus infinity, 0 for padding (slot -1).  # [rows]

    Slots and the positions that the samples take are [rows] of int32; temperature (float32), seed
    (int64) and index (int32) are [slots].
    """
    rows, vocab = logits.shape
    sampled = logits.new_empty(rows, dtype=torch.int32)
    if rows:
        num_stretches = triton.cdiv(vocab, _CANDIDATE_CONSTANTS["BLOCK"])
        best = logits.new_empty((2, rows, num_stretches), dtype=torch.float32)
        tokens = logits.new_empty((rows, num_stretches), dtype=torch.int32)
        gumbel_candidates_kernel[(rows, num_stretches)](
            logits,
            slots,
            positions,
            temperature,
            seed,
            index,
            best[0],
            tokens,
            best[1],
            logits.stride(0),
            vocab,
            **_CANDIDATE_CONSTANTS,
            **_OPTIONS,
        )
        gumbel_choice_kernel[(rows,)](
            best[0],
            tokens,
            best[1],
            slots,
            sampled,
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
) -> Tensor:
    """As the processor's device samples: in numpy, from the definition in `noise.py`."""
    values, chosen = logits.float().numpy(), slots.clamp(min=0).numpy()
    heat = temperature.numpy()[chosen, None]
    key0, key1 = row_keys(seed.numpy()[chosen], positions.numpy(), index.numpy()[chosen])
    ids = np.arange(values.shape[1], dtype=np.uint32)
    noise = gumbel(noise_bits(key0[:, None], key1[:, None], ids))
    is_random = heat > LEAST_TEMPERATURE
    noisy = np.where(is_random, values / np.where(is_random, heat, 1) + noise, values)
    sampled = noisy.argmax(axis=1).astype(np.int32)
    peaks = values.max(axis=1)  # NaN wins
    sampled[~np.isfinite(peaks)] = NOT_NUMBERS
    sampled[peaks == -np.inf] = NONE_LEFT
    sampled[slots.numpy() < 0] = 0
    return torch.from_numpy(sampled)


_CANDIDATE_CONSTANTS = {"BLOCK": 4096, "LEAST": LEAST_TEMPERATURE}
_OPTIONS = {"num_warps": 8}


def _choice_constants(vocab: int) -> dict[str, int]:
    return {
        "STRETCHES": wide_enough(triton.cdiv(vocab, int(_CANDIDATE_CONSTANTS["BLOCK"]))),
        "NOT_NUMBERS": NOT_NUMBERS,
        "NONE_LEFT": NONE_LEFT,
    }


BUILDS = (
    *(
        Build(
            name=f"{kind} logits",
            kernel=gumbel_candidates_kernel,
            types={
                "logits_ptr": f"*{kind}",
                **dict.fromkeys(("slots_ptr", "positions_ptr", "index_ptr", "token_ptr"), "*i32"),
                **dict.fromkeys(("temperature_ptr", "best_ptr", "peak_ptr"), "*fp32"),
                "seed_ptr": "*i64",
                **dict.fromkeys(("logits_stride", "vocab"), "i32"),
            },
            constants=_CANDIDATE_CONSTANTS,
            aligned=("logits_ptr", "logits_stride", "vocab"),
            options=_OPTIONS,
        )
        for kind in ("fp32", "bf16")
    ),
    Build(
        name="151,936 tokens",
        kernel=gumbel_choice_kernel,
        types={
            **dict.fromkeys(("best_ptr", "peak_ptr"), "*fp32"),
            **dict.fromkeys(("token_ptr", "slots_ptr", "sampled_ptr"), "*i32"),
            "num_stretches": "i32",
        },
        constants=_choice_constants(151_936),
        aligned=(),
        options={"num_warps": 1},
        moves_wide=False,
    ),
)
