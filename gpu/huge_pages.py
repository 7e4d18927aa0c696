"""Huge pages for the weights, which every step reads from end to end.

With small pages part of a small model's step goes into looking up addresses. Linux gives huge
pages to those that ask for them (where its setting is `madvise` or `always`); elsewhere this does
nothing.
"""

import ctypes
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]  # addresses [start, end)

_HUGE = 2 * 2**20  # bytes of a huge page
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # of linux/mman.h; the second exists since Linux 6.1


@contextmanager
def new_memory() -> Iterator[list[Range]]:
    """Yields a list that holds, once the block is left, the private memory that it mapped and
    keeps."""
    found: list[Range] = []
    before = _mapped()
    yield found
    found += added(_mapped(), before)


def move_to_huge_pages(ranges: Iterable[Range]) -> None:
    """Takes about as long as copying them. Whoever uses the memory meanwhile waits a little, and
    what was unmapped since is passed over."""
    for start, end in ranges:
        _advise(start, end)


def added(ranges: list[Range], before: list[Range]) -> Iterator[Range]:
    """What of the ranges was not there before; both are sorted by address."""
    for start, end in ranges:
        for low, high in before:
            if high <= start or low >= end:
                continue
            if low > start:
                yield start, low
            start = high
        if start < end:
            yield start, end


def _mapped() -> list[Range]:
    """The process's anonymous, private, writable memory, by rising address."""
    if not sys.platform.startswith("linux"):
        return []
    try:
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    except OSError:
        return []
    owned = [line[0] for line in lines if line[1] == "rw-p" and line[5:] in ([], ["[heap]"])]
    bounds = [addresses.split("-") for addresses in owned]
    return [(int(start, 16), int(end, 16)) for start, end in bounds]


def _advise(start: int, end: int) -> None:
    start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
    if start < end:
        with suppress(OSError, AttributeError):
            madvise = ctypes.CDLL(None).madvise
            for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
