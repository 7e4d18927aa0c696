"""Prometheus metrics of one engine, in a registry of their own (extra `metrics`).

Everything about requests is counted once, when they are finished, so that the sums are those of
their usage: of several answers to one prompt each counts, and the prompt with the first. What
stands at this moment is read when somebody scrapes, in whatever thread.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...messages import AdmitSequence, ConfigError, Finished, Message, StepPlan, TokensReady
from ..journal import Journal, Turn
from ..stats import EngineStats
from .again import Recomputed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKENS = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144)
_TIMES = (0, 1, 2, 3, 5, 8, 13)

_GAUGES: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "engine_requests_running": ("Sequences that run.", lambda stats: stats.running),
    "engine_requests_waiting": (
        "Sequences that wait, those preempted included.",
        lambda stats: stats.waiting,
    ),
    "engine_kv_blocks_used_ratio": (
        "Blocks that sequences refer to, as a share of all; cached ones that nobody uses are free.",
        lambda stats: stats.blocks_held / stats.blocks_total,
    ),
    "engine_kv_blocks_cached_ratio": (
        "Blocks that can be found by their content, used or not, as a share of all.",
        lambda stats: stats.blocks_cached / stats.blocks_total,
    ),
}
_TOTALS: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "engine_steps": ("Steps that the device has answered.", lambda stats: stats.steps_done),
    "engine_preemptions": ("How often a sequence had to wait again.", lambda s: s.preemptions),
}
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...], Callable[[Finished], float | None]]] = {
    "engine_request_queue_seconds": (
        "Until it was first scheduled.",
        _SECONDS,
        lambda done: done.timings.queue_s,
    ),
    "engine_request_prefill_seconds": (
        "From then until its first token.",
        _SECONDS,
        lambda done: done.timings.prefill_s,
    ),
    "engine_time_to_first_token_seconds": (
        "From the arrival.",
        _SECONDS,
        lambda done: done.timings.ttft_s,
    ),
    "engine_request_decode_seconds": (
        "From the first token to the last.",
        _SECONDS,
        lambda done: done.timings.decode_s,
    ),
    "engine_request_duration_seconds": (
        "From the arrival to the end.",
        _SECONDS,
        lambda done: done.timings.total_s,
    ),
    "engine_time_per_output_token_seconds": (
        "Between one token and the next, on average over a request.",
        _SECONDS,
        lambda done: _per_token(done),
    ),
    "engine_request_prompt_tokens": (
        "Tokens of a prompt.",
        _TOKENS,
        lambda done: done.usage.prompt_tokens if done.index == 0 else None,
    ),
    "engine_request_generation_tokens": (
        "Tokens of an answer.",
        _TOKENS,
        lambda done: done.usage.completion_tokens,
    ),
    "engine_request_preemptions": (
        "How often a request was preempted.",
        _TIMES,
        lambda done: done.timings.preemptions,
    ),
}


class Metrics:
    """Counts from when it is attached; `stats` is called at every scrape."""

    def __init__(
        self, model: str, stats: Callable[[], EngineStats], registry: "CollectorRegistry | None"
    ) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise ConfigError(
                "metrics need prometheus-client; install stepahead[metrics]"
            ) from error
        self.registry = registry or prometheus.CollectorRegistry(auto_describe=True)
        self._labels = {"model": model}
        self._again = Recomputed()
        self._make_counters(prometheus)
        self._histograms = [
            (self._new(prometheus.Histogram, name, about, buckets=buckets), value_of)
            for name, (about, buckets, value_of) in _HISTOGRAMS.items()
        ]
        for name, (about, value) in _GAUGES.items():
            self._new(prometheus.Gauge, name, about).set_function(
                lambda value=value: value(stats())
            )
        self.registry.register(_Totals(model, stats, self._again))

    def _make_counters(self, prometheus: Any) -> None:
        new, counter = self._new, prometheus.Counter
        self._prompt = new(counter, "engine_prompt_tokens", "Tokens of finished prompts.")
        self._cached = new(
            counter,
            "engine_cached_prompt_tokens",
            "Of those, found in the prefix cache when their request was first scheduled.",
        )
        self._generated = new(
            counter, "engine_generation_tokens", "Tokens of finished answers, as in their usage."
        )
        self._sampled = new(
            counter, "engine_sampled_tokens", "Tokens as they are sampled, also past a stop string."
        )
        self._finished = prometheus.Counter(
            "engine_requests_finished",
            "Requests that are over, by what ended them.",
            ["model", "finish_reason"],
            registry=self.registry,
        )

    def _new(self, kind: Any, name: str, about: str, **options: Any) -> Any:
        made = kind(name, about, list(self._labels), registry=self.registry, **options)
        return made.labels(**self._labels)

    def attach(self, journal: Journal) -> None:
        journal.attach(self._hear)

    def _hear(self, actor: str, turn: Turn[Message]) -> None:
        for envelope in turn.envelopes:
            match envelope.message:
                case StepPlan() as plan:
                    self._again.plan(plan)
                case TokensReady() as report:
                    self._sampled.inc(len(report.serials))
                case AdmitSequence() as ask:
                    self._again.ask(ask)
                case Finished() as done:
                    self._count(done)
                case _:
                    pass

    def _count(self, done: Finished) -> None:
        self._again.end(done.serial)
        if done.index == 0:
            self._prompt.inc(done.usage.prompt_tokens)
            self._cached.inc(done.usage.cached_tokens)
        self._generated.inc(done.usage.completion_tokens)
        self._finished.labels(finish_reason=str(done.finish_reason), **self._labels).inc()
        for histogram, value_of in self._histograms:
            value = value_of(done)
            if value is not None:
                histogram.observe(value)


class _Totals:
    """What the engine counts itself."""

    def __init__(self, model: str, stats: Callable[[], EngineStats], again: Recomputed) -> None:
        self._model = model
        self._stats = stats
        self._again = again

    def collect(self) -> list[Any]:
        from prometheus_client.core import CounterMetricFamily

        stats = self._stats()
        values = [(name, about, value(stats)) for name, (about, value) in _TOTALS.items()]
        about = "Positions computed again: after a preemption, a failed step, a rejected draft."
        values.append(("engine_recomputed_tokens", about, self._again.total))
        families = []
        for name, about, value in values:
            family = CounterMetricFamily(name, about, labels=["model"])
            family.add_metric([self._model], value)
            families.append(family)
        return families


def _per_token(done: Finished) -> float | None:
    gaps = done.usage.completion_tokens - 1
    return done.timings.decode_s / gaps if gaps > 0 else None
