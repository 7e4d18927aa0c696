"""What a step of one token a row computes: the kernel against its reference."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from .interpreter import decode_inputs, step_inputs

Rows = list[tuple[int, int, int, int]]  # slot, position, place of a block, the block
StepTensors = step_inputs.StepTensors


def filled(function: object, rows: Rows, padding: int) -> tuple[StepTensors, Tensor]:
    """What a function makes of rows, over memory that holds an earlier step; and block tables."""
    assert callable(function)
    num_rows = len(rows) + padding
    out = StepTensors.empty(num_rows, num_rows, torch.device("cpu"))
    for field in fields(out):
        getattr(out, field.name).fill_(77)
    tokens = torch.arange(300 * 40, dtype=torch.int32).view(300, 40)
    table = torch.full((300, 9), 88, dtype=torch.int32)
    sent = torch.tensor([*rows, *[(-1, -1, -1, -1)] * padding], dtype=torch.int32)
    function(sent.t().contiguous().view(-1), tokens, table, out)
    return out, table


@pytest.mark.parametrize(
    ("rows", "padding"),
    [
        ([(3, 0, -1, -1)], 0),
        ([(7, 39, 8, 5), (0, 0, -1, -1), (2, 17, 0, 0)], 5),
        ([(slot, slot % 40, slot % 10 - 1, slot) for slot in range(299, -1, -1)], 20),
        ([], 2),
    ],
)
def test_tokens_rows_and_blocks_are_those_of_the_reference(rows: Rows, padding: int) -> None:
    given, table = filled(decode_inputs.decode_inputs, rows, padding)
    expected, expected_table = filled(decode_inputs.decode_inputs_reference, rows, padding)

    for field in fields(StepTensors):
        name = field.name
        assert getattr(given, name).tolist() == getattr(expected, name).tolist(), name
    assert torch.equal(table, expected_table)


def test_they_are_what_rows_of_any_length_are_made_of() -> None:
    rows: Rows = [(5, 30, -1, -1), (1, 2, -1, -1), (9, 0, -1, -1)]
    out = StepTensors.empty(5, 5, torch.device("cpu"))
    tokens = torch.arange(300 * 40, dtype=torch.int32).view(300, 40)
    columns = torch.tensor(rows, dtype=torch.int32).t()
    step_inputs.step_inputs_reference(
        columns[0], columns[1], torch.arange(4, dtype=torch.int32), tokens, 3, out
    )

    given, _ = filled(decode_inputs.decode_inputs, rows, padding=2)

    assert given.starts.tolist() == [0, 1, 2, 3, 4, 5]  # padding has a token, and no slot
    for name in ("token_ids", "positions", "token_slots", "lengths", "slots"):
        assert getattr(given, name).tolist() == getattr(out, name).tolist(), name
