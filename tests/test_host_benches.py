"""The benchmarks of the host's side, made small: they measure what they say."""

import asyncio
import json
import time

import pytest

from stepahead.actors import overlap_bench, recorder_bench, request_bench, text_bench
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.cli.bench import host
from stepahead.cli.bench.recorded_pairs import WAYS, RecordedPairs
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


def test_what_recording_costs_is_told_run_by_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "SNAPSHOT_RUNNING", (2,))
    monkeypatch.setattr(host, "RECORDED", 3)
    monkeypatch.setattr(host, "RECORDED_STEP_S", 0.001)
    monkeypatch.setattr(host, "RECORDED_STEPS", 12)
    monkeypatch.setattr(recorder_bench, "BLOCKS", 2)
    monkeypatch.setattr(recorder_bench, "STEPS", 3)
    monkeypatch.setattr(recorder_bench, "SNAPSHOTS", 2)

    assert main(["bench", "recorder", "--json", "--runs", "2"]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    name, _ = event_loops()[0]
    assert [line["bench"] for line in lines] == [
        "recorder, by message",
        "recorder, snapshot",
        "recorder, by step",
        f"recorder, not recorded, {name}",
        f"recorder, recorded, {name}",
        f"recorder, recorded into a file, {name}",
        f"recorder, run by run, {name}",
    ]
    assert lines[-1].keys() >= {"cost_percent", "cost_into_file_percent"}


def test_a_cost_is_that_beside_the_run_that_was_not_recorded_and_everybody_is_first_once() -> None:
    pairs = RecordedPairs()
    for plain, recorded, filed in ((100.0, 99.0, 98.0), (50.0, 50.5, 50.0)):
        for way, speed in zip(WAYS, (plain, recorded, filed), strict=True):
            pairs.add(way, {"running": 8, "step_ms": 10.0, "tokens_per_s": speed})

    assert [line["cost_percent"] for line in pairs.costs()] == [1.0, -1.0]
    assert [line["cost_into_file_percent"] for line in pairs.costs()] == [2.0, 0.0]
    assert [pairs.order(place)[0] for place in range(4)] == [*WAYS, WAYS[0]]
    assert all(set(pairs.order(place)) == set(WAYS) for place in range(3))


def test_a_comparison_is_of_the_single_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "overlap", "--against", "transformers"]) == 2
    assert "--against compares the single stream, not overlap" in capsys.readouterr().err
