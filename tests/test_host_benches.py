"""The benchmarks of the host's side, made small: they measure what they say."""

import asyncio
import time

import pytest

from stepahead.actors import overlap_bench, request_bench
from stepahead.cli import bench_host
from stepahead.cli.main import main
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
    monkeypatch.setattr(bench_host, "BUILT", 3)
    monkeypatch.setattr(bench_host, "LONG_TOKENS", 9_000)

    assert main(["bench", "request", "--json", "--model", "no-such-model"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split('"')[3] for line in lines] == ["request", "long requests", "long requests"]


def test_a_comparison_is_of_the_single_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "overlap", "--against", "transformers"]) == 2
    assert "--against compares the single stream, not overlap" in capsys.readouterr().err
