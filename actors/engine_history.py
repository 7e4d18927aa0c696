"""What happened in an engine, live or over: part of Engine."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ..gpu.device import DeviceFacts
from ..messages import ConfigError
from .offload import Offload
from .recording.recorder import Recorder
from .wiring import Wiring

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from .story import Story
    from .telemetry.spans import Spans


class EngineHistory(ABC):
    """The recorder, what its log tells, and what is made of messages for others to collect."""

    _offload: Offload
    _recorder: Recorder | None
    _spans: "list[Spans]"

    @property
    @abstractmethod
    def _started(self) -> Wiring:
        """The wiring of the running engine. Raises ConfigError before the start."""

    @property
    @abstractmethod
    def facts(self) -> DeviceFacts:
        """What was found out while the model was loaded."""

    @property
    def recorder(self) -> Recorder:
        """The log of what the actors said; `dump` writes it, also after the engine is over."""
        if self._recorder is None:
            raise ConfigError("the engine has not been started; use `async with Engine(...)`")
        return self._recorder

    async def explain(
        self, request_id: str, *, index: int = 0, stall_s: float | None = None
    ) -> "Story":
        """What happened to a request that is live, or was a little while ago: why it waited, what
        it ran beside, who it gave way to, and where its tokens stalled, which is for longer than
        `stall_s` seconds (None: three times as long as usual). `print(tell(story))` shows it. A
        request for several answers has a story for each `index`.

        Raises RequestRejected for a request that the log says nothing of.
        """
        from .recording.explaining import explain_request

        flight = self.recorder.flight
        return await self._offload(
            lambda: explain_request(flight.recording, request_id, index=index, stall_s=stall_s)
        )

    def export_metrics(self, registry: "CollectorRegistry | None" = None) -> "CollectorRegistry":
        """Prometheus metrics from now on, in a registry of their own or in this one; the extra
        `metrics` is needed. Raises ConfigError without it."""
        from .telemetry.metrics import Metrics

        wiring = self._started
        metrics = Metrics(self.facts.model, wiring.stats, registry)
        metrics.attach(wiring.journal)
        return metrics.registry

    def export_spans(self, provider: "TracerProvider | None" = None) -> None:
        """OpenTelemetry spans of the requests that arrive from now on, to this provider or to the
        program's own, each under the span that is current where it is asked for; the extra `otel`
        is needed. Raises ConfigError without it."""
        from .telemetry.spans import Spans

        spans = Spans(lambda: self.facts.model, provider)
        spans.attach(self._started.journal)
        self._spans.append(spans)
