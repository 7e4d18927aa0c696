"""What happened in an engine, live or over: part of Engine."""

from ..messages import ConfigError
from .prompt_texts import Offload
from .recording.explaining import explain_request
from .recording.recorder import Recorder
from .story import Story


class EngineHistory:
    """The recorder, and what its log tells."""

    _offload: Offload
    _recorder: Recorder | None

    @property
    def recorder(self) -> Recorder:
        """The log of what the actors said; `dump` writes it, also after the engine is over."""
        if self._recorder is None:
            raise ConfigError("the engine has not been started; use `async with Engine(...)`")
        return self._recorder

    async def explain(self, request_id: str, *, stall_s: float | None = None) -> Story:
        """What happened to a request that is live, or was a little while ago: why it waited, what
        it ran beside, who it gave way to, and where its tokens stalled, which is for longer than
        `stall_s` seconds (None: three times as long as usual). `print(tell(story))` shows it.

        Raises RequestRejected for a request that the log says nothing of.
        """
        recording = self.recorder.recording
        return await self._offload(lambda: explain_request(recording, request_id, stall_s=stall_s))
