"""Metrics and spans: frozen names, and sums that are those of usage and log."""

import asyncio
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from stepahead import ConfigError, Result, SamplingParams
from stepahead.actors.story.story import Chunk, Phase
from stepahead.actors.virtual_time import run_virtual

from .engines import make_engine

METRICS = {
    "engine_cached_prompt_tokens": "counter",
    "engine_generation_tokens": "counter",
    "engine_kv_blocks_cached_ratio": "gauge",
    "engine_kv_blocks_used_ratio": "gauge",
    "engine_preemptions": "counter",
    "engine_prompt_tokens": "counter",
    "engine_recomputed_tokens": "counter",
    "engine_request_decode_seconds": "histogram",
    "engine_request_duration_seconds": "histogram",
    "engine_request_generation_tokens": "histogram",
    "engine_request_preemptions": "histogram",
    "engine_request_prefill_seconds": "histogram",
    "engine_request_prompt_tokens": "histogram",
    "engine_request_queue_seconds": "histogram",
    "engine_requests_finished": "counter",
    "engine_requests_running": "gauge",
    "engine_requests_waiting": "gauge",
    "engine_sampled_tokens": "counter",
    "engine_steps": "counter",
    "engine_time_per_output_token_seconds": "histogram",
    "engine_time_to_first_token_seconds": "histogram",
}
"""These names are what dashboards are built on: they do not change."""

HISTOGRAMS = [name for name, kind in METRICS.items() if kind == "histogram"]


class Run:
    """An eventful run that was observed in every way."""

    def __init__(self, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.results: list[Result] = []
        self.spans = InMemorySpanExporter()
        self.used_ratio_while_busy = 0.0
        self.told: dict[str, dict[Phase, float]] = {}
        self.chunks: dict[str, list[tuple[int, int, int]]] = {}  # step, start and length
        run_virtual(self._run(options))

    async def _run(self, options: dict[str, Any]) -> None:
        options.setdefault("num_blocks", 24)
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        async with make_engine(max_model_len=64, **options) as engine:
            assert engine.export_metrics(self.registry) is self.registry
            engine.export_spans(provider)
            calls = [
                engine.generate(
                    [*range(1 + 10 * (n % 4), 26 + 10 * (n % 4)), n],
                    SamplingParams(max_tokens=20, stop=("ab", "q"), ignore_eos=True, seed=n),
                    priority=n % 2,
                    request_id=f"r{n}",
                    deadline=0.15 if n == 5 else None,
                )
                for n in range(8)
            ]
            tasks = [asyncio.create_task(call) for call in calls]
            await asyncio.sleep(0.1)
            self.used_ratio_while_busy = self.value("engine_kv_blocks_used_ratio")
            await engine.abort("r1")
            self.results = [await task for task in tasks]
            for result in self.results:
                story = await engine.explain(result.request_id)
                self.told[result.request_id] = {p: story.seconds_in(p) for p in Phase}
                self.chunks[result.request_id] = [
                    (event.step, event.start, event.length)
                    for event in story.events
                    if isinstance(event, Chunk) and event.start < story.tokens.prompt
                ]

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(name, {"model": "oracle", **labels})
        assert value is not None, name
        return value


@pytest.fixture(scope="module")
def run() -> Run:
    return Run()


# Metrics


def test_the_names_and_kinds_of_metrics_are_frozen(run: Run) -> None:
    assert {family.name: family.type for family in run.registry.collect()} == METRICS
    assert all(
        sample.labels["model"] == "oracle"
        for family in run.registry.collect()
        for sample in family.samples
    )
    assert b"engine_generation_tokens_total{model=" in generate_latest(run.registry)


def test_counters_and_histograms_sum_up_to_the_usage_of_all_results(run: Run) -> None:
    usages = [result.usage for result in run.results]
    timings = [result.timings for result in run.results]
    ends = Counter(str(result.finish_reason) for result in run.results)

    assert run.value("engine_prompt_tokens_total") == sum(u.prompt_tokens for u in usages)
    assert run.value("engine_cached_prompt_tokens_total") == sum(u.cached_tokens for u in usages)
    generated = sum(u.completion_tokens for u in usages)
    assert run.value("engine_generation_tokens_total") == generated
    assert run.value("engine_request_generation_tokens_sum") == generated
    assert run.value("engine_sampled_tokens_total") >= generated
    for end, count in ends.items():
        assert run.value("engine_requests_finished_total", finish_reason=end) == count
    total_s = run.value("engine_request_duration_seconds_sum")
    assert total_s == pytest.approx(sum(t.total_s for t in timings))
    preemptions = run.value("engine_request_preemptions_sum")
    assert preemptions == run.value("engine_preemptions_total") > 0


def test_histograms_count_every_finished_request_once(run: Run) -> None:
    with_token = [r for r in run.results if r.timings.ttft_s is not None]
    with_two = [r for r in run.results if r.usage.completion_tokens > 1]
    expected = {
        "engine_request_prefill_seconds": len(with_token),
        "engine_time_to_first_token_seconds": len(with_token),
        "engine_time_per_output_token_seconds": len(with_two),
    }

    for name in HISTOGRAMS:
        assert run.value(f"{name}_count") == expected.get(name, len(run.results)), name


def test_blocks_in_use_are_those_that_somebody_refers_to_and_none_when_idle(run: Run) -> None:
    assert run.used_ratio_while_busy > 0.5
    assert run.value("engine_kv_blocks_used_ratio") == 0
    assert run.value("engine_kv_blocks_cached_ratio") > 0
    assert run.value("engine_requests_running") == run.value("engine_requests_waiting") == 0


def test_what_is_computed_again_is_counted_as_the_stories_tell(run: Run) -> None:
    async def scenario() -> tuple[float, int]:
        async with make_engine(num_blocks=8, watermark=0.0, prefix_caching=False) as engine:
            registry = engine.export_metrics()
            params = SamplingParams(max_tokens=14, ignore_eos=True)
            names = ("one", "two", "three")
            await asyncio.gather(
                *(engine.generate([1, 2, 3, 4, 5], params, request_id=name) for name in names)
            )
            again = registry.get_sample_value("engine_recomputed_tokens_total", {"model": "oracle"})
            stories = [await engine.explain(name) for name in names]
            return again or 0.0, sum(story.tokens.recomputed for story in stories)

    counted, told = run_virtual(scenario())

    assert counted == told > 0


def test_two_engines_have_registries_of_their_own_and_the_global_one_stays_untouched() -> None:
    before = {family.name for family in REGISTRY.collect()}

    async def scenario() -> None:
        async with make_engine() as one, make_engine() as other:
            registries = [engine.export_metrics() for engine in (one, other)]
            await one.generate("x", SamplingParams(max_tokens=3))
            tokens = [
                registry.get_sample_value("engine_prompt_tokens_total", {"model": "oracle"})
                for registry in registries
            ]
            assert tokens == [1, 0]

    run_virtual(scenario())

    assert {family.name for family in REGISTRY.collect()} == before


# Spans


def spans_by_request(run: Run) -> dict[str, tuple[ReadableSpan, list[ReadableSpan]]]:
    spans = run.spans.get_finished_spans()
    parents = [span for span in spans if span.parent is None]
    children = {
        parent: [s for s in spans if s.parent and s.parent.span_id == parent.context.span_id]
        for parent in parents
    }
    return {
        str((parent.attributes or {})["gen_ai.response.id"]): (parent, children[parent])
        for parent in parents
    }


def test_every_request_has_a_span_with_a_child_for_each_phase_and_they_fill_it(run: Run) -> None:
    by_request = spans_by_request(run)

    assert set(by_request) == {result.request_id for result in run.results}
    for result in run.results:
        parent, children = by_request[result.request_id]
        assert parent.name == "text_completion oracle"
        edges = sorted((child.start_time or 0, child.end_time or 0) for child in children)
        assert (edges[0][0], edges[-1][1]) == (parent.start_time, parent.end_time)
        for earlier, later in pairwise(edges):
            assert earlier[1] == later[0]
        spent: Counter[str] = Counter()
        for child in children:
            spent[child.name] += (child.end_time or 0) - (child.start_time or 0)
        told = run.told[result.request_id]
        assert {str(p): s for p, s in told.items() if s} == pytest.approx(
            {name: nanoseconds / 1e9 for name, nanoseconds in spent.items() if nanoseconds}
        )
    names = {child.name for _, children in by_request.values() for child in children}
    assert names >= {"queue", "prefill", "decode", "preempted"}


def test_each_chunk_of_a_prompt_is_an_event_of_the_phase_that_computes_it(run: Run) -> None:
    for request_id, (_, children) in spans_by_request(run).items():
        found = []
        for child in children:
            for event in child.events:
                said = dict(event.attributes or {})
                found.append(tuple(said[f"stepahead.{n}"] for n in ("step", "start", "length")))
                assert event.name == "chunk"
                assert child.name in ("prefill", "recompute")
                assert (child.start_time or 0) <= event.timestamp < (child.end_time or 0)

        assert sorted(found) == run.chunks[request_id]
    assert max(map(len, run.chunks.values())) > 1


def test_spans_carry_the_usage_by_the_names_of_the_conventions(run: Run) -> None:
    for result in run.results:
        parent, _ = spans_by_request(run)[result.request_id]
        said = dict(parent.attributes or {})
        assert said["gen_ai.usage.input_tokens"] == result.usage.prompt_tokens
        assert said["gen_ai.usage.output_tokens"] == result.usage.completion_tokens
        assert said["gen_ai.usage.cache_read.input_tokens"] == result.usage.cached_tokens
        assert said["gen_ai.response.finish_reasons"] == (str(result.finish_reason),)
        assert said["gen_ai.request.max_tokens"] == 20
        assert said["gen_ai.provider.name"] == "stepahead"


def test_a_span_is_a_child_of_the_one_that_was_current_where_the_request_was_asked_for() -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracer = provider.get_tracer("program")
    params = SamplingParams(max_tokens=3)

    async def scenario() -> None:
        async with make_engine() as engine:
            engine.export_spans(provider)
            with tracer.start_as_current_span("answering"):
                stream = engine.stream("a", params, request_id="streamed")
            with tracer.start_as_current_span("asking"):
                twice = SamplingParams(max_tokens=3, n=2)
                chat = [{"role": "user", "content": "b"}]
                await asyncio.gather(
                    engine.generate("b", twice, request_id="awaited"),
                    engine.chat(chat, params, request_id="chatted"),
                )
            await stream.result()  # begun here, outside of any span
            await engine.generate("c", params, request_id="alone")

    run_virtual(scenario())

    names = {span.context.span_id: span.name for span in exported.get_finished_spans()}
    traces = {span.name: span.context.trace_id for span in exported.get_finished_spans()}
    asked = [
        (said["gen_ai.response.id"], names.get(span.parent.span_id) if span.parent else None)
        for span in exported.get_finished_spans()
        if "gen_ai.response.id" in (said := dict(span.attributes or {}))
    ]
    assert sorted(map(str, asked)) == [
        "('alone', None)",
        "('awaited', 'asking')",
        "('awaited', 'asking')",
        "('chatted', 'asking')",
        "('streamed', 'answering')",
    ]
    assert traces["chat oracle"] == traces["asking"] != traces["answering"]


# Without the extras


@pytest.mark.parametrize("package", ["prometheus_client", "opentelemetry"])
def test_an_engine_needs_neither_extra_and_says_which_one_is_missing(package: str) -> None:
    call = "metrics" if package == "prometheus_client" else "spans"
    code = f"""
import sys
sys.modules[{package!r}] = None
from stepahead import ConfigError, SamplingParams
from stepahead.actors.virtual_time import run_virtual
from tests.engines import make_engine

async def scenario():
    async with make_engine() as engine:
        await engine.generate("x", SamplingParams(max_tokens=2))
        try:
            engine.export_{call}()
        except ConfigError as error:
            print(error)

run_virtual(scenario())
loaded = [name for name in ("prometheus_client", "opentelemetry") if sys.modules.get(name)]
print(loaded)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    first, loaded = done.stdout.splitlines()
    assert "install stepahead[" in first
    assert loaded == "[]"


def test_metrics_are_refused_before_the_start() -> None:
    async def scenario() -> None:
        make_engine().export_metrics()

    with pytest.raises(ConfigError, match="has not been started"):
        run_virtual(scenario())
