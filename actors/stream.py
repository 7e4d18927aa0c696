"""DeltaStream: what a caller iterates. It begins its request when it is first awaited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Self

from ..messages import (
    AnswerPart,
    Delta,
    FinishReason,
    Output,
    PositionLogprobs,
    RequestFailed,
    Result,
    joined_parts,
)
from .streams import OutputStream


class DeltaStream(AsyncIterator[Delta]):
    """The deltas of one request. Whichever way the caller leaves, the request is given up."""

    def __init__(
        self, submit: Callable[[], Awaitable[OutputStream]], abandon: Callable[[int], None]
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
        self._is_over = delta.finish_reason is not None
        return delta

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = await self._submit()
        if self._is_over:  # it was closed meanwhile
            self._abandon(self._stream.serial)

    async def aclose(self) -> None:
        """Give the request up, if it is not over; whoever waits for a delta sees its end."""
        self._leave()

    async def result(self) -> Result:
        """Wait for the whole answer. Raises RequestFailed if it fails on the way."""
        last: Delta | None = None
        pieces: list[str] = []
        token_ids: list[int] = []
        parts: list[AnswerPart] = []
        logprobs: list[PositionLogprobs] = []
        prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
        async for last in self:
            pieces.append(last.text)
            token_ids += last.token_ids
            parts += last.parts
            logprobs += last.logprobs or ()
            prompt_logprobs = last.prompt_logprobs or prompt_logprobs
        if last is None:
            raise RequestFailed("the stream was closed or read to its end before; nothing is left")
        assert last.finish_reason is not None
        assert last.usage is not None
        assert last.timings is not None
        text = "".join(pieces)
        if last.finish_reason is FinishReason.ERROR:
            raise RequestFailed(str(last.stop_reason), text)
        output = Output(
            last.index,
            text,
            tuple(token_ids),
            last.finish_reason,
            last.stop_reason,
            joined_parts(parts),
            None if last.logprobs is None else tuple(logprobs),
        )
        return Result(last.request_id, (output,), last.usage, last.timings, prompt_logprobs)

    def _leave(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._stream is not None and not self._stream.is_over:
            self._abandon(self._stream.serial)

    def __del__(self) -> None:
        # A loop left by `break` drops the stream: the sequence must not run on for nobody. The
        # collector may do it on any thread, and after the event loop has been closed.
        if not self._is_over and self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._leave)
