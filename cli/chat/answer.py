"""One answer on a terminal, streamed as it comes; it can be stopped at any moment."""

import asyncio
from collections.abc import AsyncIterator

from ...actors.engine import Engine
from ...messages import Delta
from ..output import without_controls, write
from .look import Screen


class Answer:
    """What came of one question."""

    def __init__(self, engine: Engine, request_id: str, screen: Screen) -> None:
        self._engine = engine
        self._screen = screen
        self.request_id = request_id
        self._streaming: asyncio.Task[None] | None = None
        self._aborting: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._pieces: list[str] = []
        self.final: Delta | None = None  # with the reason, usage and timings

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def stream(self, deltas: AsyncIterator[Delta]) -> None:
        """Show the answer until it ends or is stopped. Raises what the engine raises."""
        self._streaming = asyncio.create_task(self._show(deltas))
        try:
            await self._streaming
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
        finally:
            if self._pieces:
                self._screen.finish()
                write("\n" * (not self._pieces[-1].endswith("\n")))

    def stop(self) -> None:
        """Abort, so that the counts still come; before the first token, or asked again, cancel."""
        if self._pieces and not self._is_stopped:
            self._aborting = asyncio.create_task(self._engine.abort(self.request_id))
        elif self._streaming is not None:
            self._streaming.cancel()
        self._is_stopped = True

    async def _show(self, deltas: AsyncIterator[Delta]) -> None:
        async for delta in deltas:
            text = without_controls(delta.text)
            if text:
                self._pieces.append(text)
                self._screen.show(text)
            if delta.finish_reason is not None:
                self.final = delta
