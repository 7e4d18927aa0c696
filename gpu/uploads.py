"""Numbers of the host on their way to a device, without waiting for either."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

Upload: TypeAlias = Callable[[Sequence[NDArray[Any]]], list[Tensor]]
"""Arrays that nobody changes any more, as tensors of the same kind on a device: they hold them for
work that is queued from there on."""


def on_host(arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
    """Where the device is the processor: in the same memory."""
    return [torch.from_numpy(one if one.flags.writeable else one.copy()) for one in arrays]
