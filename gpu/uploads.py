"""Numbers of the host on a device, without waiting for either."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array that nobody changes any more as a tensor: the same memory on the processor. To a GPU
    it is copied from pinned memory, which torch keeps until the copy is done."""
    values: NDArray[Any] = array if array.flags.writeable else array.copy()
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
