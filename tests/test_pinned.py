"""Pinned memory: torch takes powers of two, of which little is wasted."""

import pytest
import torch

from stepahead.gpu.cuda.pinned import joint_zeros, shares

GIB = 2**30


def taken(parts: list[int], size: int) -> int:
    """What torch takes for pieces of this size, asked for in these parts."""
    return sum(1 << (part * size - 1).bit_length() for part in parts)


@pytest.mark.parametrize("count", [32, 56, 64, 160])
@pytest.mark.parametrize("size", [GIB, GIB + 16, 1_100_000_000, 1_500_000_000, 2 * GIB - 16])
def test_many_memories_take_little_more_than_they_are(count: int, size: int) -> None:
    parts = shares(count, size)

    assert sum(parts) == count
    assert taken(parts, size) <= 1.1 * count * size


def test_memories_of_a_power_of_two_are_asked_for_as_they_are() -> None:
    assert taken(shares(64, GIB), GIB) == 64 * GIB


def test_joint_memories_are_apart_and_aligned() -> None:
    memories = joint_zeros(5, (6, 2, 8), torch.bfloat16, pinned=False)
    for number, memory in enumerate(memories):
        memory.fill_(number)

    assert [set(memory.flatten().tolist()) for memory in memories] == [{0}, {1}, {2}, {3}, {4}]
    assert all(memory.is_contiguous() and memory.data_ptr() % 16 == 0 for memory in memories)


def test_no_memory_is_no_memory() -> None:
    assert shares(0, GIB) == []
    assert [memory.numel() for memory in joint_zeros(2, (0, 2), torch.float32, pinned=False)] == [
        0,
        0,
    ]
