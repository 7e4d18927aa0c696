"""Checks of what keeps a device's state: moved blocks."""

from collections.abc import Iterator

import torch

from .. import block_copy
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


CHECKS = (Check("copies of blocks", _copied, (block_copy.block_copy_kernel,)),)
