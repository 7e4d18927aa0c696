"""Traces through the real Scheduler and pool: what comes out follows from what goes in."""

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest

from stepahead import ConfigError, SamplingParams
from stepahead.actors.simulation.arrivals import Arrivals, Lengths
from stepahead.actors.simulation.measures import GapCounts, OccupancyMeter, Spread
from stepahead.actors.simulation.trace import TraceRequest
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.simulated import SimulatedDevice, StepTime
from stepahead.messages import Timings

from .engines import make_config, make_engine, make_facts
from .simulations import STEP, make_trace, run

HOST_BOUND = StepTime(
    overhead_s=0.001, weight_bytes=0, kv_bytes_per_token=0, flops_per_token=0, flops_rate=1
)
BUSY = Arrivals(
    rate=40,
    duration=4,
    burst=3,
    prompt_tokens=Lengths(5, 60),
    output_tokens=Lengths(1, 30),
    seed=4,
)


def test_every_request_and_token_of_a_trace_is_accounted_for() -> None:
    trace = BUSY.draw()

    result = run(trace, num_blocks=64)

    assert result.finished == result.requests == len(trace)
    assert result.refused == result.shortened == 0
    assert result.prompt_tokens == sum(request.prompt_tokens for request in trace)
    assert result.output_tokens == sum(request.output_tokens for request in trace)


def test_the_first_token_of_a_single_request_takes_one_step() -> None:
    result = run([TraceRequest(1.5, 20, 3)])

    assert result.ttft_s.p50 == pytest.approx(STEP.seconds(20, 20))
    assert result.inter_token_s.p50 == pytest.approx(STEP.seconds(1, 21))
    assert result.latency_s.mean == pytest.approx(STEP.seconds(20, 20) + 2 * STEP.seconds(1, 21))
    assert result.steps == 3


def test_a_long_prompt_takes_a_step_per_chunk() -> None:
    result = run([TraceRequest(0.0, 100, 1)], max_num_batched_tokens=40)

    steps = STEP.seconds(40, 0) + STEP.seconds(40, 0) + STEP.seconds(20, 0)
    assert result.ttft_s.p50 == pytest.approx(steps)


def test_without_a_step_ahead_every_step_waits_for_the_host() -> None:
    trace = [TraceRequest(0.0, 8, 10)]

    alone = run(trace, step_seconds=HOST_BOUND, host_s=0.0005, steps_in_flight=1)
    ahead = run(trace, step_seconds=HOST_BOUND, host_s=0.0005, steps_in_flight=2)

    assert alone.seconds == pytest.approx(10 * 0.0015)
    assert ahead.seconds == pytest.approx(10 * 0.001 + 0.0005)


@pytest.mark.parametrize("host_s", [0.0, 0.0005, 0.003])
def test_more_steps_in_flight_never_lower_throughput(host_s: float) -> None:
    trace = make_trace(24, every=0.0, output_tokens=20)

    rates = [
        run(trace, step_seconds=HOST_BOUND, host_s=host_s, steps_in_flight=steps).tokens_per_s
        for steps in (1, 2, 3, 4)
    ]

    assert all(after >= before * 0.999 for before, after in itertools.pairwise(rates))


def test_a_small_pool_preempts_and_still_finishes_everything() -> None:
    trace = make_trace(8, every=0.0, prompt_tokens=16, output_tokens=40)

    roomy, small = run(trace, num_blocks=256), run(trace, num_blocks=40)

    assert roomy.preemptions == 0
    assert small.preemptions > 0
    assert small.output_tokens == roomy.output_tokens == 8 * 40
    assert small.peak_blocks_held <= 40


def test_a_group_finds_the_prefix_it_shares_and_no_more() -> None:
    trace = [TraceRequest(float(i), 40, 2, prefix_group="a", prefix_tokens=30) for i in range(3)]
    alone = [TraceRequest(3.0 + i, 40, 2) for i in range(3)]

    result = run([*trace, *alone])

    assert result.cache_hit_tokens == 2 * 28  # whole blocks of 4


def test_groups_do_not_share_with_each_other() -> None:
    trace = [TraceRequest(float(i), 40, 2, f"group {i}", prefix_tokens=40) for i in range(3)]

    assert run(trace).cache_hit_tokens == 0


def test_an_answer_is_nobody_s_prefix() -> None:
    short = TraceRequest(0.0, 40, 40, "a", prefix_tokens=40)
    long = TraceRequest(5.0, 80, 2, "a", prefix_tokens=80)

    assert run([short, long]).cache_hit_tokens == 40


def test_nothing_is_found_without_prefix_caching() -> None:
    trace = [TraceRequest(float(i), 40, 2, "a", prefix_tokens=40) for i in range(3)]

    assert run(trace, prefix_caching=False).cache_hit_tokens == 0


def test_the_more_important_requests_run_first() -> None:
    trace = [TraceRequest(0.0, 20, 50, priority=number % 2) for number in range(16)]
    first = [TraceRequest(0.0, 20, 50) for _ in range(8)]

    mixed, alone = run(trace), run(first)

    assert mixed.ttft_s.p50 == pytest.approx(alone.ttft_s.p99)


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    first, again, other = (run(replace(BUSY, seed=seed).draw()) for seed in (4, 4, 5))

    assert first == again
    assert first != other


def test_prompts_beyond_the_context_are_refused_and_answers_cut() -> None:
    trace = [TraceRequest(0.0, 64, 4), TraceRequest(0.0, 60, 10), TraceRequest(0.0, 8, 4)]

    result = run(trace, max_model_len=64)

    assert (result.refused, result.shortened, result.finished) == (1, 1, 2)
    assert result.output_tokens == 4 + 4


def test_a_trace_whose_requests_are_all_refused_has_no_times() -> None:
    result = run([TraceRequest(0.0, 2_000, 1)])

    assert (result.refused, result.finished, result.steps) == (1, 0, 0)
    assert result.ttft_s == result.inter_token_s == Spread(None, None, None, None)


def test_an_empty_trace_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="at least one request"):
        run([])


def test_occupancy_averages_what_lasted() -> None:
    result = run([TraceRequest(1.0, 20, 100)])

    spans = result.occupancy
    width = spans[1].seconds
    busy = sum(span.running for span in spans[:-1]) * width
    busy += spans[-1].running * (result.seconds - spans[-1].seconds)
    assert busy == pytest.approx(result.seconds - 1.0, rel=0.01)
    assert (result.peak_running, result.peak_waiting) == (1, 0)
    assert result.peak_blocks_held == 30  # the last token is never computed: 119 positions


def test_spans_double_in_length_instead_of_growing_in_number() -> None:
    meter = OccupancyMeter(most=4)
    meter.set(running=2, waiting=1, held=8)
    meter.advance(0.010)
    meter.set(running=0, waiting=0, held=0)
    meter.advance(0.015)

    spans = meter.spans()

    assert [span.seconds for span in spans] == [0.0, 0.004, 0.008, 0.012]
    assert [span.running for span in spans] == pytest.approx([2.0, 2.0, 1.0, 0.0])


def test_a_percentile_is_a_value_that_was_seen() -> None:
    gaps = GapCounts(room=4)
    for gap in (0.001, 0.002, 0.002, 0.003, 0.5):
        gaps.add(np.array([gap, gap]))

    spread = gaps.spread()

    assert (spread.p50, spread.p90, spread.p99) == (0.002, 0.5, 0.5)
    assert spread.mean == pytest.approx(0.508 / 5)


def test_bursts_come_at_once_at_the_same_mean_rate() -> None:
    bursts = Arrivals(rate=20, duration=200, burst=5).draw()

    times = [request.arrival for request in bursts]
    assert times == sorted(times)
    assert all(len(set(times[i : i + 5])) == 1 for i in range(0, len(times), 5))
    assert len(bursts) == pytest.approx(20 * 200, rel=0.1)


def test_lengths_are_drawn_from_the_whole_range() -> None:
    trace = Arrivals(rate=50, duration=20, prompt_tokens=Lengths(3, 6)).draw()

    assert {request.prompt_tokens for request in trace} == {3, 4, 5, 6}
    assert all(0 < request.arrival < 20 for request in trace)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rate": 0.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": 1.0, "duration": -1.0}, "duration"),
        ({"rate": 1.0, "burst": 0}, "burst"),
        ({"rate": 1.0, "seed": -1}, "seed"),
        ({"rate": 1.0, "prompt_tokens": Lengths(0, 4)}, "prompt_tokens"),
        ({"rate": 1.0, "output_tokens": Lengths(5, 4)}, "output_tokens"),
        ({"rate": 1e6, "duration": 1e6}, "rate times duration"),
    ],
)
def test_impossible_arrivals_are_a_mistake_that_names_the_field(
    options: dict[str, object], field: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{field}"):
        Arrivals(**options)  # type: ignore[arg-type]  # what is tested


async def _through_the_engine(
    trace: list[TraceRequest], num_blocks: int, steps_in_flight: int
) -> list[Timings]:
    """The same trace through all five actors and the simulated device, on a loop."""
    facts = make_facts(make_config(num_blocks=num_blocks))
    later = asyncio.get_running_loop().call_later
    device = SimulatedDevice(facts, 16, later, step_time=STEP)
    engine = make_engine(device=device, num_blocks=num_blocks, steps_in_flight=steps_in_flight)
    async with engine:

        async def ask(number: int, request: TraceRequest) -> Timings:
            await asyncio.sleep(request.arrival)
            prompt = [32 + number] * request.prompt_tokens
            params = SamplingParams(max_tokens=request.output_tokens, ignore_eos=True)
            return (await engine.generate(prompt, params)).timings

        return await asyncio.gather(*(ask(*numbered) for numbered in enumerate(trace)))


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [48, 256])
def test_times_are_those_of_the_whole_engine_on_a_loop(
    steps_in_flight: int, num_blocks: int
) -> None:
    drawn = replace(BUSY, duration=1, burst=1, rate=60).draw()
    trace = [replace(request, prompt_tokens=min(request.prompt_tokens, 50)) for request in drawn]

    timings = run_virtual(_through_the_engine(trace, num_blocks, steps_in_flight))
    simulated = run(
        trace, num_blocks=num_blocks, steps_in_flight=steps_in_flight, max_num_batched_tokens=64
    )

    ttft, latency = [t.ttft_s or 0.0 for t in timings], [t.total_s for t in timings]
    assert simulated.ttft_s.mean == pytest.approx(sum(ttft) / len(trace))
    assert simulated.latency_s.mean == pytest.approx(sum(latency) / len(trace))
    assert simulated.preemptions == sum(t.preemptions for t in timings)
