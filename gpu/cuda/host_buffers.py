"""HostBuffers: memory of the host that a device copies from and to, used again and again.

torch's own pinned memory asks the GPU for a mark when it is let go of, inside a destructor; where
the GPU is broken, that ends the whole process instead of the step. Nobody lets go of these.
"""

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from ...messages import Ints
from .streams import Mark, Streams

_LEAST = 4096  # words


@dataclass(slots=True, eq=False)
class HostBuffer:
    """Words, and until when a device copies them."""

    words: Tensor
    values: Ints  # the same memory
    busy_until: Mark | None = None

    @property
    def is_free(self) -> bool:
        return self.busy_until is None or self.busy_until.is_done()


class HostBuffers:
    """Buffers by size. Taking one waits for nothing: where none is free, one more is made."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._given: dict[int, deque[HostBuffer]] = {}  # by their words, as they were given back

    def take(self, count: int) -> HostBuffer:
        """A buffer of at least so many words, for one thread to take. Raises RuntimeError where the
        machine below is broken."""
        size = max(_LEAST, 1 << (count - 1).bit_length())
        given = self._given.setdefault(size, deque())
        if given and given[0].is_free:
            return given.popleft()
        words = self._streams.host_words(size)
        return HostBuffer(words, words.numpy())

    def give(self, buffer: HostBuffer, busy_until: Mark | None = None) -> None:
        """Nobody reads or writes it any more but a device, until then. From any thread."""
        buffer.busy_until = busy_until
        self._given[len(buffer.words)].append(buffer)
