"""DeltaStream: what a caller iterates. It begins its request when it is first awaited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Self

from ..messages import Delta, Result
from .collecting import Collected
from .streams import OutputStream


class DeltaStream(AsyncIterator[Delta]):
    """The deltas of one request. Whichever way the caller leaves, the request is given up."""

    def __init__(
        self, submit: Callable[[], Awaitable[OutputStream]], abandon: Callable[[OutputStream], None]
    ) -> None:
        self._submit = submit
        self._abandon = abandon
        self._stream: OutputStream | None = None
        self._is_over = False
        self._is_awaited = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._is_over:
            raise StopAsyncIteration
        if self._is_awaited:
            raise RuntimeError("another task already waits for this stream; it has one reader")
        self._is_awaited = True
        try:
            if self._stream is None:
                await self._begin()
            assert self._stream is not None
            delta = await self._stream.next()
        except BaseException:
            self._leave()
            raise
        finally:
            self._is_awaited = False
        self._is_over = self._stream.is_read
        return delta

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = await self._submit()
        if self._is_over:  # it was closed meanwhile
            self._abandon(self._stream)

    async def aclose(self) -> None:
        """Give the request up, if it is not over; whoever waits for a delta sees its end."""
        self._leave()

    async def result(self) -> Result:
        """Wait for the whole answer. Raises RequestFailed if it fails on the way."""
        collected = Collected()
        async for delta in self:
            collected.add(delta)
        return collected.result()

    def _leave(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._stream is not None and not self._stream.is_over:
            self._abandon(self._stream)

    def __del__(self) -> None:
        # A loop left by `break` drops the stream: the sequence must not run on for nobody. The
        # collector may do it on any thread, and after the event loop has been closed.
        if not self._is_over and self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._leave)
