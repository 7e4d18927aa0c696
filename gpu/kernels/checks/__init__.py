"""Every kernel against its reference on the device that is there: small cases, seconds in all.

What the tests prove in Triton's interpreter, a GPU can be asked the same way: `engine-cli doctor
--gpu` does. The references run on the processor.
"""

from collections.abc import Iterator

import torch

from . import attention, layers, products, sampling, state
from .check import Check, Verdict, run_check

__all__ = ["CHECKS", "Check", "Verdict", "run_check", "run_checks"]

CHECKS: tuple[Check, ...] = (
    *layers.CHECKS,
    *attention.CHECKS,
    *products.CHECKS,
    *sampling.CHECKS,
    *state.CHECKS,
)


def run_checks(
    device: torch.device, dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float32)
) -> Iterator[Verdict]:
    """Every check in every dtype that it makes sense in; one that raises is told as any other that
    fails."""
    for check in CHECKS:
        for dtype in (dtype for dtype in dtypes if dtype in check.dtypes):
            yield run_check(check, device, dtype)
