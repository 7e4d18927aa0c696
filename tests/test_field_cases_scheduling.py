"""Cases met elsewhere: progress near a full pool, prefixes found again, callers who leave."""

import asyncio

import pytest

from stepahead import SamplingParams
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle
from stepahead.messages import FinishReason

from .batching import BLOCK, World, make_limits
from .engines import is_empty, make_engine, settle


def words(start: int, count: int) -> list[int]:
    return [(start + i) % 200 for i in range(count)]


# Progress


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
def test_work_that_waits_beside_free_blocks_always_gets_a_step(steps_in_flight: int) -> None:
    """Field case 037: prompts near the size of the pool, round after round."""
    limits = make_limits(max_model_len=96, steps_in_flight=steps_in_flight)
    world = World(limits=limits, num_blocks=24, watermark=1)
    serial = 0
    for _ in range(200):
        if world.batcher.num_waiting < 4:
            count = (90, 3, 47, 88, 61)[serial % 5]
            serial += 1
            world.request(serial, words(serial, count), max_tokens=5, priority=serial % 3 // 2)
        while world.plan() is not None:
            pass
        if world.plans:
            world.complete()
        else:
            assert world.batcher.num_running == world.batcher.num_waiting == 0

    world.run()
    assert len(world.ended) == serial
    world.plan()
    world.assert_is_empty()


def test_a_thousand_requests_of_one_token_give_everything_back() -> None:
    """Field case 098."""
    world = World(limits=make_limits(max_num_seqs=4, max_num_batched_tokens=16))
    steady = world.request(0, words(0, 4), max_tokens=250)
    for serial in range(1, 1001):
        world.request(serial, words(serial, 3), max_tokens=1)
        if serial % 3 == 0:
            world.plan()
            world.complete()

    world.run()
    world.plan()

    assert len(world.ended) == 1001
    assert world.said[0] == world.answer(steady)
    world.assert_is_empty()


# The prefix cache


@pytest.mark.parametrize("count", [BLOCK * 8 - 1, BLOCK * 8, BLOCK * 8 + 1])
@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
def test_a_prompt_that_is_wholly_cached_is_answered_as_before(
    count: int, steps_in_flight: int
) -> None:
    """Field cases 082 and 086."""
    world = World(limits=make_limits(steps_in_flight=steps_in_flight))
    first = world.request(1, words(0, count), max_tokens=12)
    world.run()
    world.request(2, words(0, count), max_tokens=12)

    plan = world.plan()

    assert plan is not None
    assert plan.lengths.tolist() == [count - (count - 1) // BLOCK * BLOCK]
    world.run()
    assert world.said[2] == world.said[1] == world.answer(first)


def test_twins_that_compute_the_same_content_side_by_side_stay_right_when_one_ends() -> None:
    """Field case 085: the second keeps blocks of its own for what the first published."""
    limits = make_limits(max_num_batched_tokens=16, long_prefill_token_threshold=8)
    world = World(limits=limits, num_blocks=20)
    first = world.request(1, words(0, 30), max_tokens=4)
    world.plan()
    second = world.request(2, words(0, 30), max_tokens=20)
    others = [world.request(serial, words(60 * serial, 20), max_tokens=12) for serial in (3, 4)]

    world.run()

    for request in (first, second, *others):
        assert world.said[request.serial] == world.answer(request)


def test_what_a_request_found_is_not_evicted_to_make_room_for_itself() -> None:
    world = World(limits=make_limits(max_model_len=64), num_blocks=10)
    world.request(1, words(0, 21), max_tokens=3)
    world.run()
    second = world.request(2, [*words(0, 20), *words(100, 15)], max_tokens=4)

    world.plan()

    [admitted] = world.reports[-1].admitted
    assert admitted.cached_tokens == 20
    world.run()
    assert world.said[2] == world.answer(second)


def test_a_cache_that_is_reset_with_steps_in_flight_gives_nobody_stale_blocks() -> None:
    world = World(oracle=Oracle(eos_every=0))
    requests = [world.request(serial, words(0, 22), max_tokens=20) for serial in (1, 2)]
    for _ in range(4):
        world.plan()
        world.complete()
    world.plan()
    world.plan()

    world.pool.reset_cache()
    late = world.request(3, words(0, 22), max_tokens=20)
    world.run()

    [admitted] = [a for report in world.reports for a in report.admitted if a.serial == 3]
    assert admitted.cached_tokens == 0
    for request in (*requests, late):
        assert world.said[request.serial] == world.answer(request)


def test_a_refused_admission_counts_no_hit_until_it_is_granted() -> None:
    world = World(limits=make_limits(max_num_seqs=4), num_blocks=16)
    world.request(1, words(0, 9), max_tokens=2)
    world.run()
    world.request(2, words(100, 40), max_tokens=15)
    world.plan()
    again = world.request(3, [*words(0, 9), *words(60, 30)], max_tokens=3)
    for _ in range(5):
        world.plan()
        world.complete()
    assert world.batcher.num_waiting == 1

    world.run()

    accounts = [a for report in world.reports for a in report.admitted if a.serial == 3]
    assert [a.cached_tokens for a in accounts] in ([0], [8])
    assert world.said[3] == world.answer(again)


# The whole engine


def test_an_abort_that_comes_before_the_last_token_is_an_abort_for_the_caller_too() -> None:
    async def scenario() -> None:
        async with make_engine() as engine:
            task = asyncio.create_task(
                engine.generate("hello", SamplingParams(max_tokens=3), request_id="r")
            )
            await settle(engine, steps=2)  # the third and last token is in flight
            assert engine.stats().steps_posted == 3
            await engine.abort("r")
            result = await task

            assert result.finish_reason is FinishReason.ABORT
            assert len(result.token_ids) == 2
            await settle(engine, steps=2)
            assert is_empty(engine)

    run_virtual(scenario())


def test_a_request_that_waits_in_a_paused_engine_can_be_given_up() -> None:
    async def scenario() -> None:
        async with make_engine(max_num_seqs=1) as engine:
            running = asyncio.create_task(engine.generate("hello", SamplingParams(max_tokens=9)))
            await settle(engine, steps=2)
            await engine.pause()
            waiting = asyncio.create_task(
                engine.generate("world", SamplingParams(max_tokens=9), request_id="w")
            )
            await settle(engine, steps=3)
            await engine.abort("w")
            given_up = await waiting
            assert given_up.finish_reason is FinishReason.ABORT
            assert given_up.token_ids == ()
            assert not running.done()
            await engine.resume()

            assert len((await running).token_ids) == 9

    run_virtual(scenario())


def test_everybody_cancelled_at_once_leaves_an_engine_that_serves_on() -> None:
    async def scenario() -> None:
        async with make_engine(num_blocks=40) as engine:
            params = SamplingParams(max_tokens=100)
            tasks = [asyncio.create_task(engine.generate(f"prompt {i}", params)) for i in range(60)]
            await settle(engine, steps=5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await settle(engine, steps=2)
            assert is_empty(engine)

            after = await engine.generate("hello", SamplingParams(max_tokens=9))
            ids = ToyTokenizer().encode("hello")
            assert list(after.token_ids) == Oracle().answer(ids, 9)

    run_virtual(scenario())
