"""Kernels compute as on a GPU: what overflows becomes infinite and says nothing."""

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _no_traps() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
