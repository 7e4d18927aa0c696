"""`bench accuracy`: how far one choice of weights is from another."""

import math

import pytest

from stepahead.cli.bench.accuracy import Predictions, _windows, compare
from stepahead.cli.mistake import Mistake


def test_perplexity_is_that_of_the_true_tokens() -> None:
    found = Predictions([1, 2], [math.log(0.5), math.log(0.125)])

    assert compare(found, found)["perplexity"] == pytest.approx(4.0)


def test_positions_whose_likeliest_token_is_another_are_counted() -> None:
    reference = Predictions([1, 2, 3, 4], [-1.0] * 4)
    found = Predictions([1, 7, 3, 4], [-1.0] * 4)

    assert compare(found, reference)["likeliest_differs_percent"] == 25.0
    assert compare(reference, reference)["likeliest_differs_percent"] == 0.0


def test_windows_are_whole_and_fit_the_context() -> None:
    assert [len(window) for window in _windows(range(1_000), 300)] == [300, 300, 300]
    assert [len(window) for window in _windows(range(100), 300)] == [100]
    with pytest.raises(Mistake, match="context of 2 positions"):
        list(_windows(range(100), 1))
