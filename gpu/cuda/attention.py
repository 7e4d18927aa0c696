"""Attention of a step: which kernel attends, by what the host knows without asking the device.

Nothing here depends on how long a row is, only on how many rows there are and how long one can be
at most: a decode step that a graph was captured for is the same at any lengths.
"""

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from ..attention import Scores
from ..kernels.attention_parts import PagedRows
from ..kernels.build import wide_enough
from ..kernels.cascade import LEAST, cascade, cascade_reference
from ..kernels.paged_attention import (
    longest_of_tiles,
    paged_attention,
    paged_attention_reference,
)
from ..kernels.split_decode import split_decode

_MOST_SPLITS = 32
_KEYS_OF_TILE = 64  # at most


@cache
def processors_of(device: torch.device) -> int:
    """Multiprocessors of a GPU; in the interpreter those of an H200."""
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    *,
    kv_scales: Tensor | None = None,
    processors: int | None = None,
) -> Tensor:
    """Query [tokens, heads, dim], its heads next to each other, over keys and values
    [memory rows, kv_heads, dim], kept as `write_cache` does → like query. What it gives for padding
    is undefined. `processors` are those of the query's GPU.

    Rows of one token decode, and those of `rows.shared` together. Where there are longer ones
    beside them, which take tiles that one token would leave empty, it is in a launch of its own.
    """
    if scores.window is not None and scores.window >= _most_positions(rows):
        scores = replace(scores, window=None)  # no row is longer than that
    processors = processors or processors_of(query.device)
    if rows.longest <= 1:
        return _decode(query, keys, values, rows, scores, kv_scales, processors, None)
    out = paged_attention(
        query, keys, values, rows, scores, kv_scales=kv_scales, skips_singles=rows.has_singles
    )
    if rows.has_singles:
        _decode(query, keys, values, rows, scores, kv_scales, processors, out)
    return out


def attend_reference(
    query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, scores: Scores
) -> Tensor:
    """Row by row, and those of `rows.shared` by way of their groups; zeros for padding."""
    out = paged_attention_reference(query, keys, values, rows, scores)
    if rows.shared is not None and scores.window is None:
        together = cascade_reference(query, keys, values, rows, scores, rows.shared)
        starts = rows.starts[:-1][(rows.starts.diff() == 1) & (rows.shared.lengths > 0)].long()
        out[starts] = together[starts]
    return out


def _decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scores: Scores,
    kv_scales: Tensor | None,
    processors: int,
    out: Tensor | None,
) -> Tensor:
    """The rows of one token, into `out` if there is one."""
    given = (query, keys, values, rows, scores)
    kv_heads, most = keys.shape[1], _most_positions(rows)
    split = splitting(len(rows.slots), kv_heads, most_positions=most, processors=processors)
    if rows.shared is not None and scores.window is None:
        return cascade(
            *given,
            rows.shared,
            splits=split.splits,
            least=split.least,
            shared_splits=shared_splits(
                len(rows.shared.tiles), kv_heads, most_positions=most, processors=processors
            ),
            kv_scales=kv_scales,
            out=out,
        )
    if split.splits == 1 and out is None:
        return paged_attention(*given, kv_scales=kv_scales)
    return split_decode(
        *given, splits=split.splits, least=split.least, kv_scales=kv_scales, out=out
    )


def _most_positions(rows: PagedRows) -> int:
    return rows.block_table.shape[1] * rows.block_size


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a row's keys are shared out among programs."""

    splits: int  # at most; a power of two
    least: int  # tiles of keys that make a split


def splitting(num_rows: int, kv_heads: int, *, most_positions: int, processors: int) -> Splitting:
    """How rows of one token are split.

    A multiprocessor holds three programs; with fewer it waits for memory. Many rows are split too,
    because the longest of them would be all that runs in the end: by then only into pieces of 256
    keys, beside whose 128 KiB (of a key head of 128 in 16 bits) the 4 KiB of a part for four query
    heads, written and read, are little. With sixteen programs for each multiprocessor the end is
    short whatever the lengths, and a launch is saved.
    """
    programs = max(num_rows, 1) * kv_heads
    if programs >= 16 * processors:
        return Splitting(1, 1)
    least = 4 if programs >= 2 * processors else 1
    wanted = max(wide_enough(-(-4 * processors // programs)), 4)
    return Splitting(min(wanted, _most_splits(most_positions, least), _MOST_SPLITS), least)


@dataclass(frozen=True, slots=True)
class StepKind:
    """What the choice of kernels depends on."""

    num_rows: int
    longest: int
    has_singles: bool = False
    num_tiles: int = 0  # of rows that share blocks


def step_kinds(
    max_rows: int,
    max_tiles: int,
    heads: int,
    kv_heads: int,
    *,
    most_positions: int,
    processors: int,
) -> list[StepKind]:
    """Steps that between them launch every kernel that one of up to `max_rows` rows may launch."""
    known = {"most_positions": most_positions, "processors": processors}
    all_rows = _one_of_each(max_rows, lambda rows: splitting(rows, kv_heads, **known))
    all_tiles = _one_of_each(max_tiles, lambda tiles: shared_splits(tiles, kv_heads, **known))
    longest = longest_of_tiles(heads // kv_heads)
    return [
        *(StepKind(rows, 1, num_tiles=tiles) for rows in all_rows for tiles in (0, *all_tiles)),
        *(StepKind(rows, longest[0], has_singles=True) for rows in all_rows),
        *(StepKind(1, most, has_singles) for most in longest for has_singles in (False, True)),
    ]


def _one_of_each(most: int, kind_of: Callable[[int], Hashable]) -> Collection[int]:
    """Of the numbers from 1 to `most` the first of each kind."""
    found: dict[Hashable, int] = {}
    for number in range(1, most + 1):
        found.setdefault(kind_of(number), number)
    return found.values()


def shared_splits(num_tiles: int, kv_heads: int, *, most_positions: int, processors: int) -> int:
    """How what groups share is split: a multiprocessor holds two of its programs."""
    wanted = wide_enough(-(-2 * processors // (max(num_tiles, 1) * kv_heads)))
    return min(max(wanted, 4), _most_splits(most_positions, LEAST), 16)


def _most_splits(most_positions: int, least: int) -> int:
    """Splits that have any keys in the longest row that there can be."""
    return wide_enough(-(-most_positions // (least * _KEYS_OF_TILE)))
