"""What tests ask of the GPU that computes nothing, and do to it."""

import ctypes
from dataclasses import dataclass

from .build import RUNTIME

GIB = 2**30
MEMORY = 24 * GIB
ILLEGAL_ADDRESS = 700  # cudaErrorIllegalAddress


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the process began."""

    launches: int  # outside of graphs
    graph_launches: int
    copies: int
    waits: int
    reservations: int  # of memory
    reserved: int  # bytes, now


_library = ctypes.CDLL(RUNTIME)
_library.null_cuda_memory.argtypes = [ctypes.c_size_t]


def counts() -> Counts:
    found = (ctypes.c_long * 6)()
    _library.null_cuda_counts(found)
    return Counts(*found)


def have_memory(num_bytes: int = MEMORY) -> None:
    """From here on the GPU has so much."""
    _library.null_cuda_memory(num_bytes)


def break_down(code: int = ILLEGAL_ADDRESS) -> None:
    """From here on every call fails; with 0 none does any more."""
    _library.null_cuda_break(code)
