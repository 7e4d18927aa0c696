"""What a step computes: the kernel against its reference."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from .interpreter import step_inputs

Rows = list[tuple[int, int, int]]  # slot, first position, tokens
StepTensors = step_inputs.StepTensors


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def filled(function: object, rows: Rows, num_tokens: int, num_rows: int) -> StepTensors:
    """What a function makes of rows, over memory that holds an earlier step."""
    assert callable(function)
    out = StepTensors.empty(num_tokens, num_rows, torch.device("cpu"))
    for field in fields(out):
        getattr(out, field.name).fill_(77)
    tokens = torch.arange(8 * 600, dtype=torch.int32).view(8, 600)
    counts = [count for *_, count in rows]
    function(
        ints([slot for slot, *_ in rows]),
        ints([position for _, position, _ in rows]),
        torch.cat([ints([0]), ints(counts).cumsum(0, dtype=torch.int32)]),
        tokens,
        sum(counts),
        out,
    )
    return out


@pytest.mark.parametrize(
    ("rows", "padding"),
    [
        ([(3, 0, 1)], 0),
        ([(7, 599, 1), (0, 0, 1), (2, 17, 1)], 5),
        ([(1, 0, 300), (5, 42, 1), (4, 100, 255), (6, 1, 1), (0, 0, 2)], 3),
        ([], 2),
    ],
)
def test_tokens_and_rows_are_those_of_the_reference_and_the_rest_is_padding(
    rows: Rows, padding: int
) -> None:
    num_tokens = sum(count for *_, count in rows) + padding
    size = num_tokens, len(rows) + padding

    given = filled(step_inputs.step_inputs, rows, *size)
    expected = filled(step_inputs.step_inputs_reference, rows, *size)

    for field in fields(StepTensors):
        name = field.name
        assert getattr(given, name).tolist() == getattr(expected, name).tolist(), name


def test_a_row_computes_its_own_positions() -> None:
    out = filled(step_inputs.step_inputs, [(2, 10, 3), (5, 0, 2)], 6, 3)

    assert out.token_ids.tolist() == [1210, 1211, 1212, 3000, 3001, 0]
    assert out.positions.tolist() == [10, 11, 12, 0, 1, 0]
    assert out.token_slots.tolist() == [2, 2, 2, 5, 5, -1]
    assert out.starts.tolist() == [0, 3, 5, 5]
    assert out.lengths.tolist() == [13, 2, 0]
    assert out.slots.tolist() == [2, 5, -1]


def test_a_smaller_step_uses_the_same_memory() -> None:
    whole = StepTensors.empty(9, 4, torch.device("cpu"))

    part = whole.first(5, 2)

    assert part.token_ids.data_ptr() == whole.token_ids.data_ptr()
    assert [len(part.positions), len(part.starts), len(part.slots)] == [5, 3, 2]
