"""One answer on a terminal, streamed as it comes; it can be stopped at any moment."""

import asyncio
from collections.abc import AsyncIterator

from ...actors.engine import Engine
from ...messages import Delta, ReasoningDelta, ToolCallDelta
from ..logprobs import ToldTokens
from ..output import without_controls, write
from .look import Look


class Answer:
    """What came of one question."""

    def __init__(self, engine: Engine, request_id: str, look: Look) -> None:
        self._engine = engine
        self._look = look
        self._screen = look.screen()
        self.request_id = request_id
        self._streaming: asyncio.Task[None] | None = None
        self._aborting: asyncio.Task[None] | None = None
        self.is_stopped = False  # by the user
        self._is_thinking = False  # what was shown last is reasoning
        self._has_spoken = False  # something else was shown before
        self._pieces: list[str] = []
        self.told = ToldTokens()
        self.final: Delta | None = None  # with the reason, usage and timings

    @property
    def text(self) -> str:
        """Everything that was said, with its reasoning, so that the model can go on from it."""
        return "".join(self._pieces)

    async def stream(self, deltas: AsyncIterator[Delta]) -> None:
        """Show the answer until it ends or is stopped. Raises what the engine raises."""
        self._streaming = asyncio.create_task(self._show(deltas))
        try:
            await self._streaming
        except asyncio.CancelledError:
            if not self.is_stopped:
                raise
        finally:
            if self._pieces:
                self._screen.finish()
                write("\n" * (not self._pieces[-1].endswith("\n")))

    def stop(self) -> None:
        """Abort, so that the counts still come; before the first token, or asked again, cancel."""
        if self._pieces and not self.is_stopped:
            self._aborting = asyncio.create_task(self._engine.abort(self.request_id))
        elif self._streaming is not None:
            self._streaming.cancel()
        self.is_stopped = True

    def displace(self) -> None:
        """Something else was written below what is shown."""
        self._screen.displace()

    def give_way(self) -> None:
        """Something else is about to be written: it gets a line of its own."""
        self.displace()
        if self._pieces and not self._pieces[-1].endswith("\n"):
            write("\n")

    async def _show(self, deltas: AsyncIterator[Delta]) -> None:
        async for delta in deltas:
            self.told.add(delta)
            if delta.text:
                self._pieces.append(without_controls(delta.text))
                self._show_parts(delta)
            if delta.finish_reason is not None:
                self.final = delta

    def _begin_thinking(self) -> None:
        """What was said before it is shown as complete: the cursor goes on behind it."""
        if not self._is_thinking and self._has_spoken:
            self._screen.finish()
            self._screen = self._look.screen()
            write("\n\n")
        self._is_thinking = True

    def _show_parts(self, delta: Delta) -> None:
        """Reasoning is told from the answer by an empty line, and by its looks where there are."""
        if not delta.parts:
            self._screen.show(without_controls(delta.text))
        for part in delta.parts:
            text = without_controls(part.source if isinstance(part, ToolCallDelta) else part.text)
            if isinstance(part, ReasoningDelta):
                self._begin_thinking()
                write(self._look.dim(text))
                continue
            if self._is_thinking:
                self._is_thinking = False
                write("\n\n")
            self._has_spoken = True
            self._screen.show(text)
