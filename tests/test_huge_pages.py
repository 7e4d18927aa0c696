"""Asking for huge pages: which memory, and that nothing in it changes."""

import numpy as np

from stepahead.gpu.huge_pages import added, move_to_huge_pages, new_memory


def test_only_what_was_not_mapped_before_is_meant() -> None:
    before = [(10, 20), (40, 50)]
    now = [(5, 25), (30, 35), (40, 60), (70, 80)]

    assert list(added(now, before)) == [(5, 10), (20, 25), (30, 35), (50, 60), (70, 80)]


def test_memory_keeps_what_was_written_to_it() -> None:
    with new_memory() as memory:
        values = np.arange(4_000_000)

    move_to_huge_pages(memory)
    assert (values == np.arange(4_000_000)).all()
