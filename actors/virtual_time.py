"""An event loop whose time is virtual: when nothing is ready, it jumps to the next timer.

The whole engine runs on it against the simulated device, so hours pass in milliseconds and every
run is the same. There is no input or output to wait for, so a loop that would wait for ever is
a deadlock, and is reported as one.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Raised when every task waits and no timer is set."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and advances only by the delays that are waited for."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    """Asked to wait for some time, it advances the loop's clock by it instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self._loop.advance(max(timeout, 0.0))
        return []


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
