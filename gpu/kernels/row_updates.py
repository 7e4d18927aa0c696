"""What a step changes in the tables by slot: stretches of words, written where they belong."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .build import Build

PIECE = 1024  # words that one update writes, at most
FIELDS = 5  # of an update: table, line, first word in it, words, where they stand among the values

_CONSTANTS = {"PIECE": PIECE, "FIELDS": FIELDS}
_OPTIONS = {"num_warps": 4}


@dataclass(frozen=True, slots=True)
class RowTables:
    """Tables that updates name by their place here, as words of 32 bits."""

    words: tuple[Tensor, ...]  # each [lines, words] of int32, over the memory of its table
    addresses: Tensor  # [tables] of int64, where the kernel runs
    widths: Tensor  # [tables] of int64: words from line to line

    @classmethod
    def of(cls, tables: Sequence[Tensor]) -> "RowTables":
        """Tables [lines, ...] of types of 4 or 8 bytes, all on one device; they must stay where
        they are for as long as this lives."""
        words = tuple(table.view(len(table), -1).view(torch.int32) for table in tables)
        device = words[0].device
        return cls(
            words,
            torch.tensor([table.data_ptr() for table in words], dtype=torch.int64).to(device),
            torch.tensor([table.shape[1] for table in words], dtype=torch.int64).to(device),
        )


@triton.jit
def row_updates_kernel(
    updates_ptr,
    values_ptr,
    addresses_ptr,
    widths_ptr,
    PIECE: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """One program per update."""
    update = updates_ptr + tl.program_id(0) * FIELDS
    table = tl.load(update)
    line = tl.load(update + 1).to(tl.int64)
    place = line * tl.load(widths_ptr + table) + tl.load(update + 2)
    count = tl.load(update + 3)
    values = values_ptr + tl.load(update + 4)
    target = tl.load(addresses_ptr + table).to(tl.pointer_type(tl.int32)) + place
    word = tl.arange(0, PIECE)
    inside = word < count
    tl.store(target + word, tl.load(values + word, mask=inside), mask=inside)


def update_rows(tables: RowTables, updates: Tensor, values: Tensor) -> None:
    """Write values [words] into tables, as updates [updates, FIELDS] say; both of int32.

    No two updates write the same word, and none more than PIECE words.
    """
    if len(updates):
        row_updates_kernel[(len(updates),)](
            updates, values, tables.addresses, tables.widths, **_CONSTANTS, **_OPTIONS
        )


def update_rows_reference(tables: RowTables, updates: Tensor, values: Tensor) -> None:
    for table, line, start, count, first in updates.tolist():
        tables.words[table][line, start : start + count] = values[first : first + count]


BUILDS = (
    Build(
        name="any tables",
        kernel=row_updates_kernel,
        types={
            **dict.fromkeys(("updates_ptr", "values_ptr"), "*i32"),
            **dict.fromkeys(("addresses_ptr", "widths_ptr"), "*i64"),
        },
        constants=_CONSTANTS,
        aligned=("updates_ptr", "values_ptr", "addresses_ptr", "widths_ptr"),
        options=_OPTIONS,
        moves_wide=False,  # updates begin anywhere
    ),
)
