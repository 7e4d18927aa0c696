"""A request for several answers in log, metrics, spans and stories: each answer is told by its
index, and the prompt, which is one, is counted once."""

from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from stepahead import Result, SamplingParams
from stepahead.actors.recording import explain_request, read_recording
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.main import main

from .engines import make_engine

PROMPT = list(range(40, 62))  # five blocks of four, and two tokens


class Observed:
    """A request for three answers and one for one, observed in every way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registry = CollectorRegistry()
        self.spans = InMemorySpanExporter()
        self.results: list[Result] = []
        structlog.configure()
        with capture_logs() as lines:
            run_virtual(self._run())
        self.lines = [line for line in lines if line["event"] == "request.finished"]

    async def _run(self) -> None:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        params = SamplingParams(n=3, max_tokens=6, ignore_eos=True)
        async with make_engine(record=self.path) as engine:
            engine.export_metrics(self.registry)
            engine.export_spans(provider)
            self.results.append(await engine.generate(PROMPT, params, request_id="three"))
            alone = SamplingParams(max_tokens=4)
            self.results.append(await engine.generate(PROMPT[:9], alone, request_id="one"))

    def total(self, name: str) -> float | None:
        return self.registry.get_sample_value(name, {"model": "oracle"})

    def usage(self, name: str) -> int:
        return sum(getattr(result.usage, name) for result in self.results)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return Observed(tmp_path_factory.mktemp("several") / "recording")


def test_each_answer_has_its_line_in_the_log(observed: Observed) -> None:
    said = [(line["request_id"], line["index"], line["serial"]) for line in observed.lines]

    assert sorted(said) == [("one", 0, 4), ("three", 0, 1), ("three", 1, 2), ("three", 2, 3)]


def test_log_metrics_and_spans_sum_up_to_the_usage_of_the_results(observed: Observed) -> None:
    firsts = [line for line in observed.lines if line["index"] == 0]
    attributes: list[dict[str, Any]] = [
        dict(s.attributes or {}) for s in observed.spans.get_finished_spans()
    ]
    spans = [said for said in attributes if "gen_ai.response.id" in said]
    spent = [said.get("gen_ai.usage.input_tokens", 0) for said in spans]

    assert observed.usage("prompt_tokens") == len(PROMPT) + 9
    assert sum(line["n_prompt"] for line in firsts) == observed.usage("prompt_tokens")
    assert sum(line["n_cached"] for line in firsts) == observed.usage("cached_tokens")
    assert sum(line["n_generated"] for line in observed.lines) == observed.usage(
        "completion_tokens"
    )
    assert observed.total("engine_prompt_tokens_total") == observed.usage("prompt_tokens")
    assert observed.total("engine_cached_prompt_tokens_total") == observed.usage("cached_tokens")
    assert observed.total("engine_generation_tokens_total") == observed.usage("completion_tokens")
    assert observed.total("engine_request_prompt_tokens_count") == len(observed.results)
    assert sum(spent) == observed.usage("prompt_tokens")
    assert sorted(said["stepahead.index"] for said in spans) == [0, 0, 1, 2]


def test_a_story_is_told_of_the_answer_that_is_asked_for(
    observed: Observed, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(observed.path)

    assert main(["explain", path, "three", "--index", "2"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("three[2] (serial 3): 22 prompt tokens, 20 of them cached")
    assert "beside three[0], three[1]" in told
    assert main(["explain", path, "three"]) == 0
    assert capsys.readouterr().out.startswith("three[0] (serial 1): 22 prompt tokens, 0 of them")
    assert main(["explain", path, "one"]) == 0
    assert capsys.readouterr().out.startswith("one (serial 4): 9 prompt tokens")
    fields = explain_request(read_recording(observed.path), "three", index=1).fields()
    assert (fields["index"], fields["answers"], fields["serial"]) == (1, 3, 2)


@pytest.mark.parametrize(("request_id", "index"), [("three", "3"), ("one", "1"), ("4", "1")])
def test_an_answer_that_there_is_not_is_refused_in_a_sentence(
    request_id: str, index: str, observed: Observed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(observed.path), request_id, "--index", index]) == 2

    said = capsys.readouterr().err
    assert f"the log says nothing of answer {index} of a request '{request_id}'; the last" in said
