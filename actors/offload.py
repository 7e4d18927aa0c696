"""Where long work goes, so that the event loop is not held up."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio.to_thread

T = TypeVar("T")


class Offload(Protocol):
    """Runs a function away from the event loop; inline in a simulation."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


async def offload_to_thread(function: Callable[[], T]) -> T:
    """Run away from the event loop; a cancelled caller does not wait for it."""
    return await anyio.to_thread.run_sync(function, abandon_on_cancel=True)
