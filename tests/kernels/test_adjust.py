"""Penalties, biases, bans and masks in one pass: the kernels against their references."""

from dataclasses import replace

import pytest
import torch

from .interpreter import DTYPES, adjust, assert_close, random_tensor, sampling_line, wish_rows

ROWS, POSITIONS, example = wish_rows.ROWS, wish_rows.POSITIONS, wish_rows.example

VOCAB = 4500  # two stretches
INFINITY = float("inf")


def copied(given: adjust.Wishes) -> adjust.Wishes:
    assert given.counts is not None
    return replace(given, lines=given.lines.clone(), counts=given.counts.clone())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocab", "padding"), [(1, 0), (100, 3), (VOCAB, 1)])
def test_logits_become_those_of_the_reference(vocab: int, padding: int, dtype: torch.dtype) -> None:
    given = example(vocab, vocab)
    expected_of = copied(given)
    logits = random_tensor(vocab, len(ROWS), vocab, dtype=dtype, padding=padding)
    adjust.count_tokens_reference(ROWS, POSITIONS, expected_of)
    expected = adjust.adjust_reference(logits.clone(), ROWS, POSITIONS, expected_of)

    adjust.count_tokens(ROWS, POSITIONS, given)
    adjusted = adjust.adjust(logits, ROWS, POSITIONS, given)

    assert given.counts is not None
    assert expected_of.counts is not None
    assert torch.equal(given.counts, expected_of.counts)
    assert torch.equal(given.lines, expected_of.lines)
    assert adjusted.dtype == torch.float32
    assert (adjusted is logits) == (dtype == torch.float32)
    is_real = ROWS >= 0
    assert_close(adjusted[is_real], expected[is_real])


@pytest.mark.parametrize("wish", ["counts", "biases", "bans", "masks"])
def test_each_wish_alone_is_that_of_the_reference(wish: str) -> None:
    full = example(1, 100)
    none = replace(full, counts=None, biases=None, bans=None, masks=None)
    given = replace(none, **{wish: getattr(full, wish)})
    logits = random_tensor(2, len(ROWS), 100, dtype=torch.float32)
    adjust.count_tokens(ROWS, POSITIONS, given)
    expected = adjust.adjust_reference(logits.clone(), ROWS, POSITIONS, given)

    adjusted = adjust.adjust(logits, ROWS, POSITIONS, given)

    assert_close(adjusted, expected)
    assert none.are_none
    assert not given.are_none


def test_counts_take_in_what_is_new_and_a_prompt_is_marked_only() -> None:
    given = example(3, 100)
    assert given.counts is not None
    said = given.tokens[1]
    slot = torch.tensor([1], dtype=torch.int32)
    for position in (4, 5, 6, 30):
        adjust.count_tokens(slot, torch.tensor([position], dtype=torch.int32), given)

    counts = given.counts[1]
    assert (counts & adjust.IN_PROMPT.value).nonzero().flatten().tolist() == sorted(
        set(said[:4].tolist())
    )
    answer = said[4:30].long().bincount(minlength=100)
    assert torch.equal((counts & (adjust.IN_PROMPT.value - 1)).long(), answer)
    assert sampling_line.ints(given.lines, sampling_line.COUNTED)[1] == 30


def test_a_row_that_wishes_nothing_is_not_touched() -> None:
    given = replace(example(4, 100), masks=None)
    logits = torch.full((2, 100), float("nan"))
    expected = logits.clone()
    slots = torch.tensor([0, -1], dtype=torch.int32)

    adjusted = adjust.adjust(logits, slots, torch.tensor([9, 9], dtype=torch.int32), given)

    assert adjusted is logits
    torch.testing.assert_close(adjusted, expected, equal_nan=True)


def test_what_cannot_be_sampled_is_minus_infinity_whatever_the_model_says() -> None:
    given = replace(example(5, 100), counts=None, bans=None, masks=None)
    assert given.biases is not None
    slots, positions = torch.tensor([[2], [9]], dtype=torch.int32)

    adjusted = adjust.adjust(torch.full((1, 100), INFINITY), slots, positions, given)

    assert (adjusted[0][given.biases[0].isnan()] == -INFINITY).all()
    assert adjusted[0, 50:][~given.biases[0, 50:].isnan()].eq(INFINITY).all()


def test_no_row_is_no_launch() -> None:
    none = torch.zeros(0, dtype=torch.int32)
    adjust.count_tokens(none, none, example(6, 10))

    assert adjust.adjust(torch.empty(0, 10), none, none, example(6, 10)).shape == (0, 10)
