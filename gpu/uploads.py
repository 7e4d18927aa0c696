"""Numbers of the host on their way to a device, without waiting for either."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def for_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array that nobody changes any more as a tensor of the host, in pinned memory for a GPU:
    copying it there is then only queued, and torch keeps the memory until that is done."""
    values: NDArray[Any] = array if array.flags.writeable else array.copy()
    tensor = torch.from_numpy(values)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def uploaded(tensor: Tensor, device: torch.device) -> Tensor:
    """What `for_device` gave, on the device."""
    return tensor.to(device, non_blocking=True)


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array that nobody changes any more, on the device; the same memory on the processor."""
    return uploaded(for_device(array, device), device)
