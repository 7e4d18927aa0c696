"""Kernels compute as on a GPU: what overflows becomes infinite and says nothing."""

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest

if "triton" not in sys.modules:  # whichever of these tests comes first
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _no_traps() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
