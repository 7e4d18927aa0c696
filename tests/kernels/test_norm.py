"""Addition with RMSNorm: the kernel against its reference."""

import pytest
import torch

from .interpreter import DTYPES, assert_close, norm, random_tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "size", "padding"), [(1, 1, 0), (3, 48, 7), (5, 64, 0)])
def test_the_norm_of_the_sum_and_the_sum_are_those_of_the_reference(
    tokens: int, size: int, padding: int, dtype: torch.dtype
) -> None:
    x = random_tensor(1, tokens, size, dtype=dtype, padding=padding)
    residual = random_tensor(2, tokens, size, dtype=dtype, padding=2 * padding)
    weight = random_tensor(3, 1, size, dtype=dtype)[0]
    expected_sum = residual.clone()
    expected = norm.add_rms_norm_reference(x, expected_sum, weight, 1e-5)

    assert_close(norm.add_rms_norm(x, residual, weight, 1e-5), expected)
    assert torch.equal(residual, expected_sum)


def test_no_token_is_no_launch() -> None:
    empty = torch.empty(0, 8)

    assert norm.add_rms_norm(empty, empty.clone(), torch.ones(8), 1e-5).shape == (0, 8)


def test_a_row_of_zeros_stays_zeros() -> None:
    zeros = torch.zeros(2, 16)

    assert not norm.add_rms_norm(zeros, zeros.clone(), torch.ones(16), 1e-6).any()
