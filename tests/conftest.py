"""What every test leaves as it found it."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _leave_no_logging_configured() -> Iterator[None]:
    """A command configures logs for its process, which here is that of every other test."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch's operations are tiny in these tests; threads would only wait for one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
