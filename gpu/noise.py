"""Sampling noise as a pure function of (seed, index, position, token id).

A token's noise does not depend on the batch, on chunking or on preemption: given equal logits a
sequence draws the same tokens wherever it runs. The integers below are defined on unsigned 32-bit
words with wrap-around and are the same on every device:

    mix(x):  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16
    key0 = mix(mix(mix(mix(seed_low) ^ seed_high) ^ index) ^ position)
    key1 = mix(mix(mix(position ^ 0x9e3779b9) ^ seed_low) ^ (seed_high + index))
    bits = mix(mix(token_id ^ key0) ^ key1)
    uniform = (float32(bits) + 0.5) * 2**-32                    in (0, 1], rounded to nearest
    gumbel = -log(-log1p(-uniform))                             the large values from uniform near 0

`seed_low` and `seed_high` are the halves of the 64-bit seed.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_SECOND_STREAM = 0x9E3779B9


def row_keys(
    seeds: NDArray[np.int64],
    positions: NDArray[np.integer],
    index: int | NDArray[np.integer] = 0,
) -> tuple[Words, Words]:
    """The two keys of every row that samples.  # two of [num_rows]"""
    low = (seeds & 0xFFFFFFFF).astype(np.uint32)
    high = ((seeds >> 32) & 0xFFFFFFFF).astype(np.uint32)
    place = positions.astype(np.uint32)
    which = np.full_like(place, index)
    key0 = _mixed(_mixed(_mixed(_mixed(low) ^ high) ^ which) ^ place)
    key1 = _mixed(_mixed(_mixed(place ^ np.uint32(_SECOND_STREAM)) ^ low) ^ (high + which))
    return key0, key1


def noise_bits(key0: Words | np.uint32, key1: Words | np.uint32, token_ids: Words) -> Words:
    """The random words of rows with these keys for some token ids, as numpy broadcasts them; the
    same words on every device."""
    bits: Words = token_ids ^ key0
    _mix(bits)
    bits ^= key1
    _mix(bits)
    return bits


def gumbel(bits: Words) -> NDArray[np.float32]:
    """Random words to standard Gumbel noise; adding it to logits makes argmax a sample."""
    uniform = bits.astype(np.float32)
    uniform += np.float32(0.5)
    uniform *= np.float32(-(2.0**-32))
    with np.errstate(divide="ignore"):  # a word that rounds to 1 gives noise of minus infinity
        np.log1p(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    return uniform


def _mixed(words: Words) -> Words:
    copy = words.copy()
    _mix(copy)
    return copy


def _mix(words: Words) -> None:
    """Scramble in place; a bijection on 32-bit words."""
    scratch = np.empty_like(words)
    for shift, factor in _ROUNDS:
        np.right_shift(words, shift, out=scratch)
        np.bitwise_xor(words, scratch, out=words)
        if factor is not None:
            np.multiply(words, factor, out=words)


_ROUNDS: Iterable[tuple[np.uint32, np.uint32 | None]] = (
    (np.uint32(16), np.uint32(0x7FEB352D)),
    (np.uint32(15), np.uint32(0x846CA68B)),
    (np.uint32(16), None),
)
