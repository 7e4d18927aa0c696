"""Staging: what the host sends to a step, packed into one host buffer and one copy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...messages import Ints
from .host_buffers import HostBuffers
from .streams import Streams

_ALIGNED = 4  # words: where a part begins, so that kernels are compiled for one alignment


class Staging:
    """Sends arrays to the device. Nothing waits: neither for a copy nor for what is queued."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._buffers = HostBuffers(streams)

    def send(self, parts: Sequence[NDArray[np.integer]]) -> list[Tensor]:
        """Queue one copy of all parts, as int32; for each a tensor like it on the device, that
        holds it once the stream that computes gets there."""
        sizes: list[int] = []  # of each part, and of the padding behind it
        for part in parts:
            sizes += (part.size, -part.size % _ALIGNED)
        sizes.append(_ALIGNED)  # so that there is always something to send
        count = sum(sizes)
        buffer = self._buffers.take(count)
        begin = 0
        for part, padding in zip(parts, sizes[1::2], strict=True):
            end = begin + part.size
            buffer.values[begin:end] = part.reshape(-1)
            begin = end + padding
        sent = self._streams.upload(buffer.words[:count])
        self._buffers.give(buffer, busy_until=self._streams.mark())
        pieces = torch.split_with_sizes(sent, sizes)[:-1:2]  # one call, and not one for each
        return [
            piece if part.ndim == 1 else piece.view(part.shape)
            for part, piece in zip(parts, pieces, strict=True)
        ]

    def send_to(self, target: Tensor, write: Callable[[Ints], None]) -> None:
        """Queue one copy to memory of the device, of as many words as it has.  # flat, of int32"""
        buffer = self._buffers.take(len(target))
        write(buffer.values[: len(target)])
        self._streams.upload_to(target, buffer.words[: len(target)])
        self._buffers.give(buffer, busy_until=self._streams.mark())

    def upload(self, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        """The same for arrays of any kind, which they keep (`uploads.Upload`)."""
        pieces = self.send([_words_of(array) for array in arrays])
        return [_like(array, piece) for array, piece in zip(arrays, pieces, strict=True)]


def _words_of(array: NDArray[Any]) -> Ints:
    """The bytes of an array, and zeros behind them, as words."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if data.size % 4:
        data = np.append(data, np.zeros(-data.size % 4, dtype=np.uint8))
    return data.view(np.int32)


def _like(array: NDArray[Any], words: Tensor) -> Tensor:
    """What such words stand for."""
    kind = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
    return words.view(kind)[: array.size].view(array.shape)
