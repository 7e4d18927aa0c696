"""OpenTelemetry spans of one engine's requests (extra `otel`).

A span for every finished request, under the one that was current where it was asked for, with a
child for each of its phases: queue, prefill, decode, preempted, recompute. Where a part of its
prompt is computed, that is an event of the child. Attributes follow the GenAI conventions, which
are experimental: as they were in April 2026. No text of a prompt or an answer is among them.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...messages import (
    AdmitSequence,
    ConfigError,
    Finished,
    FinishReason,
    Generate,
    Grant,
    Message,
    SequenceAdmitted,
    StepPlan,
    TokensReady,
)
from ..journal import Journal, Turn
from ..story.phases import Phases
from ..story.story import Phase, PhaseSpan
from ..streams import OutputStream

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

CONVENTIONS = "2026-04"
PROVIDER = "stepahead"

Submit: TypeAlias = Callable[[], Awaitable[OutputStream]]


class _Chunk(NamedTuple):
    """Positions of a prompt that a step was to compute."""

    t_ns: int
    step: int
    start: int
    length: int


class _Journey:
    """A live request on its way through the phases."""

    def __init__(self, request: Generate, arrived_ns: int, parent: "Context | None") -> None:
        self.request = request
        self.arrived_ns = arrived_ns
        self.parent = parent
        self.phases = Phases(arrived_ns)
        self.has_token = False
        self.slot = -1  # the last that it had
        self.chunks: list[_Chunk] = []

    def chunks_in(self, phase: PhaseSpan) -> "Iterator[_Chunk]":
        return (chunk for chunk in self.chunks if phase.begin_ns <= chunk.t_ns < phase.end_ns)


class Spans:
    """Follows the requests that arrive after it was attached."""

    def __init__(self, model: Callable[[], str], provider: "TracerProvider | None") -> None:
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            raise ConfigError("spans need opentelemetry-api; install stepahead[otel]") from error
        self._context, self._trace = context, trace
        self._tracer = trace.get_tracer("stepahead", tracer_provider=provider)
        self._model = model
        self._parents: dict[int, Context] = {}  # of requests that were not heard of yet
        self._live: dict[int, _Journey] = {}
        self._expecting: dict[int, _Journey] = {}  # those whose next token ends a phase
        self._asked: AdmitSequence | None = None
        self._unix_ns = 0  # what the engine's clock is behind the calendar

    def under_caller(self, submit: Submit) -> Submit:
        """Submits a request, as a child of the span that is current now."""
        parent = self._context.get_current()

        async def submitted() -> OutputStream:
            stream = await submit()  # its messages are posted; nobody has taken them yet
            self._parents.update(dict.fromkeys(stream.serials, parent))
            return stream

        return submitted

    def attach(self, journal: Journal) -> None:
        self._unix_ns = time.time_ns() - journal.clock()
        journal.attach(self._hear)

    def _hear(self, actor: str, turn: Turn[Message]) -> None:
        for envelope in turn.envelopes:
            match envelope.message:
                case Generate() as request if actor == "detokenizer":
                    parent = self._parents.pop(request.serial, None)
                    self._live[request.serial] = _Journey(request, envelope.t_ns, parent)
                case AdmitSequence() as ask:
                    self._asked = ask
                case SequenceAdmitted(outcome=Grant.FULL):
                    self._go_on(turn.t_ns)
                case StepPlan() as plan if self._expecting:
                    self._note_chunks(plan, envelope.t_ns)
                case TokensReady() as report:
                    self._report(report, envelope.t_ns)
                case Finished() as done:
                    self._finish(done)
                case _:
                    pass

    def _go_on(self, t_ns: int) -> None:
        asked = self._asked
        journey = None if asked is None else self._live.get(asked.serial)
        if asked is not None and journey is not None:
            again = Phase.RECOMPUTE if journey.has_token else Phase.PREFILL
            journey.phases.turn_to(again, t_ns)
            journey.slot = asked.slot
            self._expecting[journey.request.serial] = journey

    def _note_chunks(self, plan: StepPlan, t_ns: int) -> None:
        by_slot = {journey.slot: journey for journey in self._expecting.values()}
        columns = (plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist())
        for slot, start, length in zip(*columns, strict=True):
            journey = by_slot.get(slot)
            if journey is not None and start < len(journey.request.prompt):
                journey.chunks.append(_Chunk(t_ns, plan.step, start, length))

    def _report(self, report: TokensReady, t_ns: int) -> None:
        if self._expecting:
            serials = set(report.serials.tolist())
            for serial in serials & self._expecting.keys():
                journey = self._expecting.pop(serial)
                journey.has_token = True
                journey.phases.turn_to(Phase.DECODE, t_ns)
        for preempted in report.preempted:
            self._expecting.pop(preempted.serial, None)
            if preempted.serial in self._live:
                self._live[preempted.serial].phases.turn_to(Phase.PREEMPTED, t_ns)

    def _finish(self, done: Finished) -> None:
        journey = self._live.pop(done.serial, None)
        self._expecting.pop(done.serial, None)
        if journey is None:
            return
        request, end_ns = journey.request, journey.arrived_ns + round(done.timings.total_s * 1e9)
        operation = "text_completion" if request.chat is None else "chat"
        span = self._tracer.start_span(
            f"{operation} {self._model()}",
            journey.parent,
            kind=self._trace.SpanKind.INTERNAL,
            start_time=journey.arrived_ns + self._unix_ns,
            attributes=self._attributes(request, done, operation),
        )
        if done.finish_reason == FinishReason.ERROR:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(done.stop_reason)))
        context = self._trace.set_span_in_context(span)
        for phase in journey.phases.until(end_ns):
            child = self._tracer.start_span(
                str(phase.phase), context, start_time=phase.begin_ns + self._unix_ns
            )
            for chunk in journey.chunks_in(phase):
                said = {f"stepahead.{name}": getattr(chunk, name) for name in _Chunk._fields[1:]}
                child.add_event("chunk", said, chunk.t_ns + self._unix_ns)
            child.end(phase.end_ns + self._unix_ns)
        span.end(end_ns + self._unix_ns)

    def _attributes(self, request: Generate, done: Finished, operation: str) -> dict[str, Any]:
        params, usage = request.params, done.usage
        said: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model(),
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": float(params.temperature),
            "gen_ai.request.top_p": float(params.top_p),
            "gen_ai.request.top_k": params.top_k,
            "gen_ai.request.frequency_penalty": float(params.frequency_penalty),
            "gen_ai.request.presence_penalty": float(params.presence_penalty),
            "gen_ai.request.choice.count": params.n,
            "gen_ai.request.seed": request.seed,
            "gen_ai.response.id": done.request_id,
            "gen_ai.response.model": self._model(),
            "gen_ai.response.finish_reasons": [str(done.finish_reason)],
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "stepahead.serial": done.serial,
            "stepahead.index": done.index,
            "stepahead.preemptions": done.timings.preemptions,
        }
        if done.index == 0:  # whoever adds up spans is to count a prompt once
            said["gen_ai.usage.input_tokens"] = usage.prompt_tokens
            said["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        if done.finish_reason == FinishReason.ERROR:
            said["error.type"] = "request_failed"
        return said
