"""Sampling with counter noise: the kernel against the processor's sampling."""

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from stepahead.gpu.noise import gumbel as expected_gumbel
from stepahead.gpu.noise import noise_bits, row_keys
from stepahead.gpu.row_failures import NONE_LEFT, NOT_NUMBERS

from .interpreter import DTYPES, gumbel, random_tensor

SEEDS = torch.tensor([0, -1, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0], dtype=torch.int64)
INDEX = torch.tensor([0, 1, 7, 2**31 - 1, 0], dtype=torch.int32)
TEMPERATURE = torch.tensor([1.0, 0.0, 0.7, 1e-5, 30.0])
TABLES = {"temperature": TEMPERATURE, "seed": SEEDS, "index": INDEX}


def rows(*pairs: tuple[int, int]) -> dict[str, Any]:
    """Slot and position of every row, beside the tables."""
    slots, positions = torch.tensor(pairs, dtype=torch.int32).view(-1, 2).T.contiguous()
    return {"slots": slots, "positions": positions, **TABLES}


ROWS = rows((0, 0), (1, 5), (4, 131_071), (-1, 0), (2, 9), (3, 1))


@triton.jit
def noise_kernel(seed_ptr, index_ptr, position, bits_ptr, noise_ptr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    key0, key1 = gumbel.row_key(tl.load(seed_ptr + row), tl.load(index_ptr + row), position)
    token = tl.arange(0, BLOCK)
    bits = gumbel.mixed(gumbel.mixed(token.to(tl.uint32) ^ key0) ^ key1)
    tl.store(bits_ptr + row * BLOCK + token, bits.to(tl.int32, bitcast=True))
    tl.store(noise_ptr + row * BLOCK + token, gumbel.gumbel_noise(bits))


@triton.jit
def noise_of_words_kernel(bits_ptr, noise_ptr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    bits = tl.load(bits_ptr + place).to(tl.uint32, bitcast=True)
    tl.store(noise_ptr + place, gumbel.gumbel_noise(bits))


def assert_few_ulps(given: Tensor, expected: np.ndarray[Any, Any]) -> None:
    torch.testing.assert_close(given, torch.from_numpy(expected), rtol=4e-7, atol=2e-7)


def test_the_random_words_are_those_of_every_device_bit_for_bit() -> None:
    size, position = 256, 123_456_789
    words = torch.empty(len(SEEDS), size, dtype=torch.int32)
    noise = torch.empty(len(SEEDS), size)

    noise_kernel[(len(SEEDS),)](SEEDS, INDEX, position, words, noise, BLOCK=size)

    places = np.full(len(SEEDS), position)
    key0, key1 = row_keys(SEEDS.numpy(), places, INDEX.numpy())
    expected = noise_bits(key0[:, None], key1[:, None], np.arange(size, dtype=np.uint32))
    assert np.array_equal(words.numpy().view(np.uint32), expected)
    assert_few_ulps(noise, expected_gumbel(expected))


def test_noise_of_extreme_words_is_within_a_few_ulps() -> None:
    low = np.arange(128, dtype=np.uint32)
    powers = np.uint32(1) << np.arange(32, dtype=np.uint32)
    words = np.concatenate([low, powers, ~powers, ~low[:64]])
    noise = torch.empty(len(words))

    bits = torch.from_numpy(words.view(np.int32))
    noise_of_words_kernel[(1,)](bits, noise, BLOCK=len(words))

    assert_few_ulps(noise, expected_gumbel(words))
    assert noise[-1] == float("-inf")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocab", "padding"), [(1, 0), (100, 3), (4096, 0), (9000, 1)])
def test_tokens_are_those_of_the_processor(vocab: int, padding: int, dtype: torch.dtype) -> None:
    logits = random_tensor(vocab, len(ROWS["slots"]), vocab, dtype=dtype, padding=padding)

    sampled = gumbel.sample_gumbel(logits, **ROWS)

    assert sampled.tolist() == gumbel.sample_gumbel_reference(logits, **ROWS).tolist()
    assert sampled[1] == logits[1].argmax()


def test_rows_that_cannot_be_sampled_are_told_apart() -> None:
    logits = torch.zeros(6, 5000)
    logits[0, 4999] = float("nan")
    logits[1, 17] = float("inf")
    logits[2] = float("-inf")
    logits[4, :-1] = float("-inf")

    sampled = gumbel.sample_gumbel(logits, **ROWS)

    assert sampled.tolist() == [NOT_NUMBERS, NOT_NUMBERS, NONE_LEFT, 0, 4999, 0]
    assert sampled.tolist() == gumbel.sample_gumbel_reference(logits, **ROWS).tolist()


def test_no_row_is_no_launch() -> None:
    assert gumbel.sample_gumbel(torch.empty(0, 10), **rows()).shape == (0,)
