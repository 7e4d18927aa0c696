"""Checks of what keeps a device's state: moved blocks, tables by slot and what is made of them."""

from collections.abc import Iterator
from dataclasses import fields

import torch
from torch import Tensor

from .. import block_copy, decode_inputs, record, row_updates, step_inputs
from .check import Bench, Check, Pair

_PAGE = 16


def _copied(bench: Bench) -> Iterator[Pair]:
    device = [bench.random(n, 4 * _PAGE, 2, 64) for n in range(3)]
    other = [bench.random(9 + n, 3 * _PAGE, 2, 64) for n in range(3)]
    targets = torch.tensor([2, -1, 0], dtype=torch.int32)
    sources = torch.tensor([3, 1, 0], dtype=torch.int32)
    into = bench.there(other)
    copier = block_copy.BlockCopier(into, bench.there(device), block_size=_PAGE)
    copier.to(bench.device).copy(bench.there(targets), bench.there(sources))
    block_copy.copy_blocks_reference(other, device, targets, sources, block_size=_PAGE)
    for given, expected in zip(into, other, strict=True):
        yield Pair(given, expected, ulps=0)


def _ints(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def _tables() -> list[Tensor]:
    tokens = torch.arange(8 * 2100, dtype=torch.int32).view(8, 2100)
    return [tokens, torch.arange(8, dtype=torch.int64)]


def _updated(bench: Bench) -> Iterator[Pair]:
    updates = _ints((0, 3, 2099, 1, 0), (0, 1, 5, row_updates.PIECE, 3), (1, 5, 0, 2, 1098))
    values = torch.arange(1100, dtype=torch.int32) - 500
    tables = _tables()
    there = bench.there(tables)
    row_updates.update_rows(row_updates.RowTables.of(there), *bench.there((updates, values)))
    row_updates.update_rows_reference(row_updates.RowTables.of(tables), updates, values)
    yield from map(Pair, there, tables)


def _made(bench: Bench) -> Iterator[Pair]:
    tokens, num_tokens = _tables()[0], 557
    rows = _ints(1, 5, 4, 6), _ints(0, 42, 100, 1), _ints(0, 300, 301, 556, 557)
    expected = step_inputs.StepTensors.empty(num_tokens + 9, 6, torch.device("cpu"))
    given = step_inputs.StepTensors.empty(num_tokens + 9, 6, bench.device)
    step_inputs.step_inputs_reference(*rows, tokens, num_tokens, expected)
    slots, positions, starts, table = bench.there((*rows, tokens))
    step_inputs.step_inputs(slots, positions, starts, table, num_tokens, given)
    for field in fields(expected):
        yield Pair(getattr(given, field.name), getattr(expected, field.name))


def _decoded(bench: Bench) -> Iterator[Pair]:
    tables, num_rows = (_tables()[0], torch.zeros((8, 140), dtype=torch.int32)), 300
    sent = torch.full((decode_inputs.FIELDS, num_rows), -1, dtype=torch.int32)
    sent[:, [0, 2, 299]] = _ints((1, 7, 4), (42, 0, 2099), (2, -1, 139), (9, 5, 77))
    expected = step_inputs.StepTensors.empty(num_rows, num_rows, torch.device("cpu"))
    given = step_inputs.StepTensors.empty(num_rows, num_rows, bench.device)
    tokens, table = tables
    rows, tokens_there, table_there = bench.there((sent.view(-1), tokens, table))
    decode_inputs.decode_inputs(rows, tokens_there, table_there, given)
    decode_inputs.decode_inputs_reference(sent.view(-1), tokens, table, expected)
    for field in fields(expected):
        yield Pair(getattr(given, field.name), getattr(expected, field.name))
    yield Pair(table_there, table)


def _recorded(bench: Bench) -> Iterator[Pair]:
    tokens = _tables()[0]
    columns = _ints(5, -1, 9, -2), _ints(2, 0, -1, 1), _ints(3, 0, 1, 2)
    there = bench.there(tokens)
    sampled, slots, positions = bench.there(columns)
    record.record(sampled, slots, positions, there)
    record.record_reference(*columns, tokens)
    yield Pair(there, tokens)


CHECKS = (
    Check("copies of blocks", _copied, (block_copy.block_copy_kernel,)),
    Check("updates of tables by slot", _updated, (row_updates.row_updates_kernel,)),
    Check("a step's inputs", _made, (step_inputs.step_inputs_kernel,)),
    Check("a decode step's inputs", _decoded, (decode_inputs.decode_inputs_kernel,)),
    Check("sampled tokens by slot", _recorded, (record.record_kernel,)),
)
