"""What every test leaves as it found it."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _leave_no_logging_configured() -> Iterator[None]:
    """A command configures logs for its process, which here is that of every other test."""
    yield
    structlog.reset_defaults()
