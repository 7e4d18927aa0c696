"""The benchmarks of the host's side, made small: they measure what they say."""

import asyncio
import json
import time

import pytest

from stepahead.actors import overlap_bench, request_bench, text_bench
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.cli.bench import host
from stepahead.cli.main import main
from stepahead.cli.runner import event_loops
from stepahead.gpu.paced import PacedDevice
from stepahead.messages import StepDone, StepFailed, StepPlan

from .batching import World, make_facts


def make_plan() -> StepPlan:
    world = World()
    world.request(1, [5, 6, 7])
    plan = world.plan()
    assert plan is not None
    return plan


def test_a_paced_device_takes_its_time_and_tells_how_long_it_had_nothing_to_do() -> None:
    device = PacedDevice(make_facts(), 0.02, lambda call: call())
    done: list[StepDone | StepFailed] = []
    plan = make_plan()
    time.sleep(0.03)
    started = time.perf_counter()

    device.launch(plan, done.append)
    device.launch(plan, done.append)
    device.close()

    assert time.perf_counter() - started >= 0.04
    assert [result.step for result in done] == [1, 1]
    assert device.gaps[0] >= 0.03
    assert device.gaps[1] == 0.0


def test_the_text_bench_tells_apart_what_text_costs() -> None:
    line = text_bench.measure(ToyTokenizer(), 2_000)

    assert 0 < line["decoded_us"] < line["chat_us"]
    assert line.keys() == {"decoded_us", "output_us", "with_stops_us", "chat_us"}


def test_the_overlap_bench_counts_what_the_device_waited_for() -> None:
    line = asyncio.run(overlap_bench.measure(3, 0.002, steps_in_flight=2, steps=20))

    assert (line["running"], line["step_ms"], line["steps_in_flight"]) == (3, 2.0, 2)
    assert 0 <= line["idle_percent"] < 100
    assert 0 <= line["gap_us_p50"] <= line["gap_us_p99"]
    assert line["tokens_per_delta"] >= 1


def test_the_request_bench_builds_requests_and_finds_long_ones_again() -> None:
    built = asyncio.run(request_bench.build(64, requests=5))
    late = asyncio.run(request_bench.lag(20_000))

    assert 0 < built["p50"] <= built["p99"]
    assert late["cached_tokens"] == request_bench.LONG_ONES * (20_000 - request_bench.BLOCK_SIZE)
    assert late["lag_ms_mean"] <= late["max"]


def test_a_bench_of_the_host_needs_no_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "BUILT", 3)
    monkeypatch.setattr(host, "LONG_TOKENS", 9_000)

    options = ["--json", "--runs", "2", "--model", "no-such-model"]
    assert main(["bench", "request", *options]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [f"long requests, {name}" for name, _ in event_loops()]
    assert [line["bench"] for line in lines] == ["request", *names]
    assert [line["runs"] for line in lines] == [2, 2, 2]
    assert all(line["p99"]["min"] <= line["p99"]["max"] for line in lines)


def test_the_control_plane_is_measured_by_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "SIZES", (2, 3))
    monkeypatch.setattr(host, "CONTROL_STEPS", 8)

    assert main(["bench", "control-plane", "--json"]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["bench"] for line in lines] == ["control-plane 2", "control-plane 3"]
    assert [line["running"] for line in lines] == [2, 3]
    assert all(line["us_per_step"]["median"] > 0 for line in lines)


def test_a_comparison_is_of_the_single_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "overlap", "--against", "transformers"]) == 2
    assert "--against compares the single stream, not overlap" in capsys.readouterr().err
