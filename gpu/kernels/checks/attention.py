"""Checks of attention over paged memory, in blocks that lie scattered."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...attention import Scores
from .. import cascade, paged_attention, split_decode
from ..attention_parts import PagedRows, SharedRuns, keeps_e4m3
from .check import Bench, Check, Pair

_PAGE = 16
_OUT_OF_BOUNDS = 2**30  # a block that nobody has: whoever reads it faults

Shape = tuple[tuple[int, int], ...]  # tokens and positions of each row; no positions is padding
MIXED: Shape = ((1, 1), (3, 70), (0, 0), (70, 150), (1, 65), (2, 0))
DECODE: Shape = ((1, 1), (1, 17), (1, 0), (1, 130))
SHARING: Shape = ((1, 90), (1, 17), (1, 81), (1, 130))
_SHARED_BLOCKS = 5

_SCORES = {
    "plain": Scores(0.1),
    "a window": Scores(0.1, window=20),
    "a soft-cap": Scores(0.3, softcap=1.5),
    "sinks": Scores(0.1, sinks=torch.empty(0)),
}


def rows_of(shape: Shape) -> PagedRows:
    """Rows whose blocks are scattered, and whose tables end out of bounds."""
    lengths = torch.tensor([length for _, length in shape], dtype=torch.int32)
    starts = torch.tensor([0, *(tokens for tokens, _ in shape)]).cumsum(0).int()
    slots = torch.randperm(len(shape), generator=torch.Generator().manual_seed(1)).int()
    counts = [-(-length // _PAGE) for _, length in shape]
    table = torch.full((len(shape), 1 + max(counts)), _OUT_OF_BOUNDS, dtype=torch.int32)
    blocks = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(2)).int()
    ends = torch.tensor(counts).cumsum(0)
    for slot, own in zip(slots.tolist(), blocks.tensor_split(ends[:-1]), strict=True):
        table[slot, : len(own)] = own
    slots[lengths == 0] = -1
    return PagedRows(starts, lengths, slots, table, _PAGE, max(tokens for tokens, _ in shape))


def rows_there(bench: Bench, rows: PagedRows) -> PagedRows:
    """The same on the device."""
    return replace(
        rows,
        starts=bench.there(rows.starts),
        lengths=bench.there(rows.lengths),
        slots=bench.there(rows.slots),
        block_table=bench.there(rows.block_table),
    )


def _attends(
    bench: Bench,
    attend: Callable[..., Tensor],
    shape: Shape,
    heads: tuple[int, int, int],
    form: str,
    is_e4m3: bool,
) -> Iterator[Pair]:
    if is_e4m3 and not keeps_e4m3(bench.device):
        return
    num_heads, kv_heads, dim = heads
    rows = rows_of(shape)
    num_blocks = sum(-(-length // _PAGE) for _, length in shape)
    query = bench.random(1, int(rows.starts[-1]), num_heads, dim)
    keys, values = (bench.random(n, num_blocks * _PAGE, kv_heads, dim) for n in (2, 3))
    kv_scales = None
    if is_e4m3:
        keys, values = keys.to(torch.float8_e4m3fn), values.to(torch.float8_e4m3fn)
        kv_scales = 0.5 + bench.random(5, 2, kv_heads).float().abs()
    scores = _SCORES[form]
    if scores.sinks is not None:
        scores = replace(scores, sinks=bench.random(4, 1, num_heads)[0])
    there = replace(scores, sinks=bench.there(scores.sinks))
    given = attend(
        *bench.there((query, keys, values)),
        rows_there(bench, rows),
        there,
        kv_scales=bench.there(kv_scales),
    )
    expected = paged_attention.paged_attention_reference(
        query, keys, values, rows, scores, kv_scales=kv_scales
    )
    owner = torch.arange(len(rows.slots)).repeat_interleave(rows.starts.diff().long())
    is_real = rows.slots[owner] >= 0
    yield Pair(given.cpu()[is_real], expected[is_real], 4 if bench.dtype == torch.float32 else 2)


def _cascades(bench: Bench, heads: tuple[int, int, int], form: str) -> Iterator[Pair]:
    """Three of four rows share their first blocks, as a table says that gives them the same."""
    num_heads, kv_heads, dim = heads
    rows = rows_of(SHARING)
    positions = _SHARED_BLOCKS * _PAGE
    together = [row for row, (_, length) in enumerate(SHARING) if length > positions]
    owners = rows.slots[together].long()
    rows.block_table[owners, :_SHARED_BLOCKS] = rows.block_table[owners[0], :_SHARED_BLOCKS]
    lengths = torch.zeros(len(SHARING), dtype=torch.int32)
    lengths[together] = positions
    order = torch.tensor(together, dtype=torch.int32)
    tiles = torch.tensor([[0, len(together), int(owners[0]), positions], [0] * 4]).int()
    query = bench.random(1, len(SHARING), num_heads, dim)
    num_blocks = 1 + int(rows.block_table[rows.block_table < _OUT_OF_BOUNDS].max())
    keys, values = (bench.random(n, num_blocks * _PAGE, kv_heads, dim) for n in (2, 3))
    shared = SharedRuns(bench.there(lengths), bench.there(order), bench.there(tiles))
    given = cascade.cascade(
        bench.there(query),
        bench.there(keys),
        bench.there(values),
        rows_there(bench, rows),
        _SCORES[form],
        shared,
        splits=4,
    )
    expected = paged_attention.paged_attention_reference(query, keys, values, rows, _SCORES[form])
    yield Pair(given.cpu(), expected, 4 if bench.dtype == torch.float32 else 2)


def _checks() -> Iterator[Check]:
    wide, odd = (4, 1, 128), (6, 2, 12)
    paged = (paged_attention.paged_attention, (paged_attention.paged_attention_kernel,))
    split = (
        split_decode.split_decode,
        (split_decode.split_decode_kernel, split_decode.merge_kernel),
    )
    for (attend, kernels), name, shape, heads, form in (
        (paged, "prefill and decode", MIXED, wide, "plain"),
        (paged, "prefill and decode", MIXED, odd, "a window"),
        (paged, "prefill and decode", MIXED, wide, "a soft-cap"),
        (paged, "prefill and decode", MIXED, odd, "sinks"),
        (paged, "decode", DECODE, wide, "plain"),
        (split, "split decode", DECODE, wide, "plain"),
        (split, "split decode", DECODE, odd, "a window"),
        (split, "split decode", DECODE, wide, "a soft-cap"),
        (split, "split decode", DECODE, odd, "sinks"),
        (paged, "prefill and decode, e4m3", MIXED, wide, "plain"),
        (split, "split decode, e4m3", DECODE, wide, "plain"),
    ):
        yield Check(
            f"{name}, {heads[0]} + {heads[1]} heads of {heads[2]}, {form}",
            partial(
                _attends,
                attend=attend,
                shape=shape,
                heads=heads,
                form=form,
                is_e4m3=name.endswith("e4m3"),
            ),
            kernels,
            (torch.bfloat16, torch.float16) if heads == wide else (torch.bfloat16, torch.float32),
        )
    for heads, form in ((wide, "plain"), (odd, "a soft-cap")):
        yield Check(
            f"cascade, {heads[0]} + {heads[1]} heads of {heads[2]}, {form}",
            partial(_cascades, heads=heads, form=form),
            (cascade.shared_kernel, split_decode.split_decode_kernel, split_decode.merge_kernel),
        )


CHECKS = tuple(_checks())
