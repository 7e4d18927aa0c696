"""What a card does at best, measured on it: the ceilings that floors are made of."""

import torch

from ...gpu.roofline import Rates
from .timing import seconds_each


def measure_rates(device: torch.device, *, copy_bytes: int, width: int) -> Rates:
    """By a copy within the memory, whose bytes count as read and as written, and by a product of
    square matrices in bfloat16."""
    return Rates(
        bandwidth=2 * copy_bytes / _copy_s(device, copy_bytes),
        flops_rate=2 * width**3 / _product_s(device, width),
    )


def _copy_s(device: torch.device, num_bytes: int) -> float:
    source = torch.empty(num_bytes // 2, dtype=torch.bfloat16, device=device).normal_()
    target = torch.empty_like(source)
    return seconds_each(lambda: target.copy_(source), device)


def _product_s(device: torch.device, width: int) -> float:
    left, right, out = (
        torch.empty((width, width), dtype=torch.bfloat16, device=device).normal_() for _ in range(3)
    )
    return seconds_each(lambda: torch.mm(left, right, out=out), device)
