"""Sampled tokens in the table by slot: the kernel against its reference."""

import torch

from .interpreter import record


def test_tokens_go_where_the_next_step_finds_them_and_failed_ones_leave_nothing() -> None:
    sampled = torch.tensor([5, -1, 9, -2, 8], dtype=torch.int32)
    slots = torch.tensor([2, 0, -1, 1, 2], dtype=torch.int32)
    positions = torch.tensor([3, 0, 1, 2, 0], dtype=torch.int32)
    given = torch.full((3, 4), 7, dtype=torch.int32)
    expected = given.clone()

    record.record(sampled, slots, positions, given)
    record.record_reference(sampled, slots, positions, expected)

    assert given.tolist() == [[0, 7, 7, 7], [7, 7, 0, 7], [8, 7, 7, 5]]
    assert torch.equal(given, expected)


def test_many_samples_are_all_recorded() -> None:
    count = 700
    sampled = torch.arange(count, dtype=torch.int32)
    tokens = torch.zeros(count, 2, dtype=torch.int32)

    record.record(sampled, sampled, torch.ones_like(sampled), tokens)

    assert tokens[:, 1].tolist() == list(range(count))


def test_no_sample_is_no_launch() -> None:
    empty = torch.empty(0, dtype=torch.int32)

    record.record(empty, empty, empty, torch.zeros(1, 1, dtype=torch.int32))
