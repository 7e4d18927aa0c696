"""Copies of blocks: the kernel against its reference."""

import pytest
import torch
from torch import Tensor

from .interpreter import DTYPES, block_copy, random_tensor


def memories(
    seed: int, num_blocks: int, block_size: int, dim: int, dtype: torch.dtype
) -> list[Tensor]:
    return [
        random_tensor(seed + layer, num_blocks * block_size, 2, dim, dtype=dtype)
        for layer in range(3)
    ]


def blocks(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("block_size", "dim"), [(1, 8), (16, 36), (16, 64)])
def test_a_swap_moves_the_blocks_of_every_layer_and_no_other(
    block_size: int, dim: int, dtype: torch.dtype
) -> None:
    device = memories(0, 4, block_size, dim, dtype)
    host = memories(9, 3, block_size, dim, dtype)
    expected = [memory.clone() for memory in host]
    targets, sources = blocks(2, -1, 0), blocks(3, 1, 0)
    block_copy.copy_blocks_reference(expected, device, targets, sources, block_size=block_size)

    block_copy.BlockCopier(host, device, block_size=block_size).copy(targets, sources)

    assert all(torch.equal(*pair) for pair in zip(host, expected, strict=True))


def test_a_block_is_copied_within_one_memory() -> None:
    memory = memories(0, 3, 4, 8, torch.float32)
    before = [layer.clone() for layer in memory]

    block_copy.BlockCopier(memory, memory, block_size=4).copy(blocks(2), blocks(0))

    for layer, old in zip(memory, before, strict=True):
        assert torch.equal(layer[8:12], old[:4])
        assert torch.equal(layer[:8], old[:8])


def test_no_pair_is_no_launch() -> None:
    memory = memories(0, 1, 4, 8, torch.float32)

    block_copy.BlockCopier(memory, memory, block_size=4).copy(blocks(), blocks())


def test_memories_that_do_not_fit_are_refused_with_what_differs() -> None:
    wide, narrow = [torch.zeros(4, 2, 8)], [torch.zeros(4, 1, 8)]

    with pytest.raises(ValueError, match=r"\[32, 64\] bytes a row in 1 and 1 memories"):
        block_copy.BlockCopier(wide, narrow, block_size=2)
    with pytest.raises(ValueError, match="a block of 8 bytes is not aligned to 16 bytes"):
        block_copy.BlockCopier([torch.zeros(4, 1, 1)], [torch.zeros(4, 1, 1)], block_size=2)
