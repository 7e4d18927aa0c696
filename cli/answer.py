"""One answer on a terminal, streamed as it comes; it can be stopped at any moment."""

import asyncio

from ..actors.engine import Engine
from ..messages import Delta, FinishReason, SamplingParams
from .conversation import Message
from .output import write, write_answer

_STOPPED = "(stopped)\n"
_NOTES = {
    FinishReason.ABORT: _STOPPED,
    FinishReason.LENGTH: "(cut off at the limit of tokens)\n",
    FinishReason.TIMEOUT: "(out of time)\n",
    FinishReason.ERROR: "(the answer failed)\n",
}


class Answer:
    """What came of one question."""

    def __init__(self, engine: Engine, request_id: str) -> None:
        self._engine = engine
        self._request_id = request_id
        self._streaming: asyncio.Task[None] | None = None
        self._aborting: asyncio.Task[None] | None = None
        self._stopped = False
        self._pieces: list[str] = []
        self.final: Delta | None = None  # with the reason, usage and timings

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def stream(self, messages: list[Message], params: SamplingParams) -> None:
        """Show the answer until it ends or is stopped. Raises what the engine raises."""
        if self._stopped:
            write(_STOPPED)
            return
        self._streaming = asyncio.create_task(self._show(messages, params))
        try:
            await self._streaming
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            write("\n" * bool(self._pieces) + _STOPPED)

    def stop(self) -> None:
        """Abort, so that the counts still come; before the first token, or asked again, cancel."""
        if self._pieces and not self._stopped:
            self._aborting = asyncio.create_task(self._engine.abort(self._request_id))
        elif self._streaming is not None:
            self._streaming.cancel()
        self._stopped = True

    async def _show(self, messages: list[Message], params: SamplingParams) -> None:
        stream = self._engine.stream_chat(messages, params, request_id=self._request_id)
        async for delta in stream:
            self._pieces.append(delta.text)
            write_answer(delta.text)
            if delta.finish_reason is not None:
                self.final = delta
                write("\n" + _NOTES.get(delta.finish_reason, ""))
