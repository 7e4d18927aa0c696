"""Staging: what the host sends to a step, packed into one pinned buffer and one copy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .streams import Mark, Streams

_ALIGNED = 4  # words: where a part begins, so that kernels are compiled for one alignment
_LEAST = 4096  # words of a buffer


class Staging:
    """Pinned buffers that take turns. One is written again only when its copy was made."""

    def __init__(self, streams: Streams, depth: int = 6) -> None:
        """`depth` buffers: one more than there are steps in flight, or launching waits."""
        self._streams = streams
        self._buffers = [_Buffer() for _ in range(depth)]
        self._turn = 0

    def send(self, parts: Sequence[NDArray[np.integer]]) -> list[Tensor]:
        """Queue one copy of all parts, as int32; for each a tensor like it on the device, that
        holds it once the stream that computes gets there."""
        ends = np.cumsum([-(-part.size // _ALIGNED) * _ALIGNED for part in parts]).tolist()
        begins = [0, *ends[:-1]]
        buffer = self._next()
        words = buffer.room(self._streams, max(ends[-1], _ALIGNED))
        values = words.numpy()
        for begin, part in zip(begins, parts, strict=True):
            values[begin : begin + part.size] = part.reshape(-1)
        sent = self._streams.upload(words)
        buffer.copied = self._streams.mark()
        return [
            sent[begin : begin + part.size].view(part.shape)
            for begin, part in zip(begins, parts, strict=True)
        ]

    def _next(self) -> "_Buffer":
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        if buffer.copied is not None:
            buffer.copied.wait()
        return buffer


class _Buffer:
    """Pinned words, and when what they hold was copied."""

    def __init__(self) -> None:
        self._words: Tensor | None = None
        self.copied: Mark | None = None

    def room(self, streams: Streams, count: int) -> Tensor:
        """The first `count` words; grown where there are fewer."""
        if self._words is None or len(self._words) < count:
            self._words = streams.host_words(max(2 * count, _LEAST))
        return self._words[:count]
