"""SiLU times up: the kernel against its reference."""

import pytest
import torch

from .interpreter import DTYPES, activation, assert_close, random_tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "size", "padding"),
    [(0, 4, 0), (1, 1, 3), (3, 40, 5), (2, 1024, 0), (1, 1025, 1)],
)
def test_the_product_is_that_of_the_reference(
    tokens: int, size: int, padding: int, dtype: torch.dtype
) -> None:
    gate_up = random_tensor(1, tokens, 2 * size, dtype=dtype, padding=padding)

    given = activation.silu_mul(gate_up)

    assert given.is_contiguous()
    assert_close(given, activation.silu_mul_reference(gate_up))


def test_large_gates_neither_overflow_nor_lose_their_sign() -> None:
    gate_up = torch.tensor([[200.0, -200.0, 1.0, 1.0]])

    assert activation.silu_mul(gate_up).tolist() == [[200.0, 0.0]]
