"""Updates of tables by slot: the kernel against its reference."""

import pytest
import torch
from torch import Tensor

from .interpreter import row_updates


def make_tables() -> list[Tensor]:
    return [
        torch.arange(4 * 2100, dtype=torch.int32).view(4, 2100),
        torch.arange(3.0),
        torch.arange(6, dtype=torch.int64),
    ]


def ints(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def test_stretches_are_written_where_they_belong_and_nowhere_else() -> None:
    given, expected = make_tables(), make_tables()
    values = torch.arange(1100, dtype=torch.int32) - 500
    updates = ints(
        (0, 3, 2099, 1, 0),
        (0, 1, 5, row_updates.PIECE, 3),
        (1, 2, 0, 1, 7),
        (0, 0, 0, 0, 0),
        (2, 5, 0, 2, 1098),
    )

    row_updates.update_rows(row_updates.RowTables.of(given), updates, values)
    row_updates.update_rows_reference(row_updates.RowTables.of(expected), updates, values)

    for table, other in zip(given, expected, strict=True):
        assert torch.equal(table.view(torch.int32), other.view(torch.int32))
    assert given[0][3, 2099] == -500
    assert given[0][1, 4:6].tolist() == [2104, -497]


def test_floats_and_wide_integers_are_written_by_their_bits() -> None:
    tables = make_tables()
    values = torch.cat(
        [torch.tensor([0.7]).view(torch.int32), torch.tensor([-(2**40)]).view(torch.int32)]
    )
    updates = ints((1, 0, 0, 1, 0), (2, 4, 0, 2, 1))

    row_updates.update_rows(row_updates.RowTables.of(tables), updates, values)

    assert tables[1].tolist() == pytest.approx([0.7, 1, 2])
    assert tables[2].tolist() == [0, 1, 2, 3, -(2**40), 5]


def test_no_update_is_no_launch() -> None:
    tables = row_updates.RowTables.of(make_tables())

    row_updates.update_rows(tables, torch.empty(0, row_updates.FIELDS), torch.empty(0))
