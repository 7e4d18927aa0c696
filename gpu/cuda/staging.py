"""Staging: what the host sends to a step, packed into one pinned buffer and one copy."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...messages import Ints
from .streams import Mark, Streams

_ALIGNED = 4  # words: where a part begins, so that kernels are compiled for one alignment
_LEAST = 4096  # words of a buffer


class Staging:
    """Pinned buffers that take turns. One is written again only when its copy was made."""

    def __init__(self, streams: Streams, depth: int = 6) -> None:
        """`depth` buffers: one more than there are steps in flight, or launching waits."""
        self._streams = streams
        self._buffers = [_Buffer(streams) for _ in range(depth)]
        self._turn = 0

    def send(self, parts: Sequence[NDArray[np.integer]]) -> list[Tensor]:
        """Queue one copy of all parts, as int32; for each a tensor like it on the device, that
        holds it once the stream that computes gets there."""
        sizes: list[int] = []  # of each part, and of the padding behind it
        for part in parts:
            sizes += (part.size, -part.size % _ALIGNED)
        sizes.append(_ALIGNED)  # so that there is always something to send
        buffer = self._next()
        words, values = buffer.room(sum(sizes))
        begin = 0
        for part, padding in zip(parts, sizes[1::2], strict=True):
            end = begin + part.size
            values[begin:end] = part.reshape(-1)
            begin = end + padding
        sent = self._streams.upload(words)
        buffer.copied = self._streams.mark()
        pieces = torch.split_with_sizes(sent, sizes)[:-1:2]  # one call, and not one for each
        return [
            piece if part.ndim == 1 else piece.view(part.shape)
            for part, piece in zip(parts, pieces, strict=True)
        ]

    def _next(self) -> "_Buffer":
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        if buffer.copied is not None:
            buffer.copied.wait()
        return buffer


class _Buffer:
    """Pinned words, and when what they hold was copied."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._words = streams.host_words(_LEAST)
        self._values: Ints = self._words.numpy()
        self.copied: Mark | None = None

    def room(self, count: int) -> tuple[Tensor, Ints]:
        """The first `count` words, as a tensor and as an array; grown where there are fewer."""
        if self._values.size < count:
            self._words = self._streams.host_words(2 * count)
            self._values = self._words.numpy()
        return self._words[:count], self._values
