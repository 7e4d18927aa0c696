"""Cuts without a sort: the kernels against the processor's, which sorts."""

import numpy as np
import pytest
import torch
from torch import Tensor

from .interpreter import DTYPES, cuts, random_tensor, sampling_line

INFINITY = float("inf")
Sampling = tuple[float, int, float, float]  # temperature, top_k, top_p, min_p

MIXED: tuple[Sampling, ...] = (
    (1.3, 0, 0.9, 0.0),
    (0.5, 50, 0.8, 0.0),
    (2.0, 7, 1.0, 0.3),
    (0.1, 100_000, 0.3, 0.0),
    (0.0, 5, 0.5, 0.5),
)


def lines(rows: tuple[Sampling, ...]) -> Tensor:
    """A line for each slot."""
    made = torch.zeros(len(rows), sampling_line.WIDTH.value, dtype=torch.int32)
    for slot, (temperature, top_k, top_p, min_p) in enumerate(rows):
        least = float(np.log(np.float32(min_p))) if min_p else -INFINITY
        sampling_line.floats(made, sampling_line.TEMPERATURE)[slot] = temperature
        sampling_line.ints(made, sampling_line.TOP_K)[slot] = top_k
        sampling_line.floats(made, sampling_line.TOP_P)[slot] = top_p
        sampling_line.floats(made, sampling_line.LEAST_LOG_SHARE)[slot] = least
    return made


def both(logits: Tensor, rows: tuple[Sampling, ...], *slots: int) -> tuple[list[float], Tensor]:
    """What the kernels find, and what the processor finds."""
    chosen = torch.tensor(slots or range(len(rows)), dtype=torch.int32)
    given = chosen, lines(rows)
    has_top = any(k or p < 1 for _, k, p, _ in rows)
    has_top_p = any(p < 1 for _, _, p, _ in rows)
    return (
        cuts.find_cuts(logits, *given, has_top=has_top, has_top_p=has_top_p).tolist(),
        cuts.find_cuts_reference(logits, *given, has_top=has_top, has_top_p=has_top_p),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocab", "padding", "scale"), [(1, 0, 1.0), (300, 3, 0.01), (9000, 1, 4)])
def test_cuts_are_those_of_the_processor(
    vocab: int, padding: int, scale: float, dtype: torch.dtype
) -> None:
    logits = random_tensor(vocab, len(MIXED), vocab, dtype=dtype, padding=padding)
    logits *= scale

    found, expected = both(logits, MIXED)

    assert found == expected.tolist()


@pytest.mark.parametrize("top_k", [1, 3, 4096, 4097, 4999, 5000])
def test_the_k_th_largest_is_found_where_all_are_different(top_k: int) -> None:
    generator = torch.Generator().manual_seed(top_k)
    logits = torch.randperm(5000, generator=generator).float().view(1, -1) - 2500

    found, _ = both(logits, ((1.0, top_k, 1.0, 0.0),))

    assert found == [2500.0 - top_k if top_k < 5000 else -INFINITY]


def test_those_that_tie_with_the_last_one_kept_are_kept_too() -> None:
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0, -0.0, -4.0]]).repeat(4, 1)
    rows = ((1.0, 2, 1.0, 0.0), (1.0, 0, 0.75, 0.0), (1.0, 2, 0.9, 0.0), (1.0, 5, 1.0, 0.0))

    found, expected = both(logits, rows)

    assert found == expected.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_equal_logits_are_all_kept() -> None:
    found, expected = both(torch.full((2, 4500), 2.5), ((1.0, 0, 0.1, 0.0), (0.5, 3, 1.0, 0.0)))

    assert found == expected.tolist() == [2.5, 5.0]


def test_what_is_banned_takes_no_part() -> None:
    logits = torch.full((3, 5000), -INFINITY)
    logits[:, 4000:4003] = torch.tensor([1.0, 2.0, 3.0])
    rows = ((1.0, 2, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (1.0, 5, 0.5, 0.0))

    found, _ = both(logits, rows)

    assert found == [2.0, -INFINITY, 3.0]


def test_logits_far_below_the_likeliest_can_still_be_the_last_of_many() -> None:
    logits = torch.arange(0, -3000, -1).float().view(1, -1)

    found, expected = both(logits, ((1.0, 2000, 1.0, 0.0),))

    assert found == expected.tolist() == [-1999.0]


def test_min_p_alone_is_a_share_of_the_likeliest() -> None:
    logits = random_tensor(7, 2, 4200, dtype=torch.float32)

    found, expected = both(logits, ((0.5, 0, 1.0, 0.1), (1.0, 0, 1.0, 0.0)))

    assert found == expected.tolist()
    assert found[1] == -INFINITY


def test_padding_and_rows_that_are_no_numbers_end_like_any_other() -> None:
    rows = ((1.0, 2, 0.5, 0.1),) * 4
    logits = random_tensor(1, 4, 4200, dtype=torch.float32)
    logits[0, 7] = float("nan")
    logits[1, 9] = INFINITY
    logits[2] = -INFINITY
    last = logits[3:].clone()

    found, _ = both(logits, rows, 0, 1, 2, 3)
    assert found[3:] == both(last, rows[3:])[0]

    logits[:3] = float("nan")
    found, _ = both(logits, rows, -1, -1, -1, 3)
    assert found[3:] == both(last, rows[3:])[0]


def test_a_row_is_cut_alike_alone_and_among_others() -> None:
    logits = random_tensor(3, len(MIXED), 5000, dtype=torch.bfloat16)
    together, _ = both(logits, MIXED)

    assert [both(logits[row : row + 1], MIXED, row)[0][0] for row in (0, 1)] == together[:2]


def test_no_row_is_no_launch() -> None:
    none = torch.zeros(0, dtype=torch.int32)

    assert cuts.find_cuts(
        torch.empty(0, 9), none, lines(MIXED), has_top=True, has_top_p=True
    ).shape == (0,)
