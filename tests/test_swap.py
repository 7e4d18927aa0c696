"""Swapping to host memory (rule 21): what is saved, when it comes back, and how it ends."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from stepahead import SamplingParams
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.host import HostMemory, count_host_blocks
from stepahead.gpu.oracle import Oracle
from stepahead.kvpool import HostTier, SwapCosts
from stepahead.messages import FinishReason, StepPlan

from .batching import BLOCK, World, make_limits, make_request
from .engines import is_empty, make_engine, settle
from .simulations import make_trace, run


def words(start: int, count: int) -> list[int]:
    return [(start + i) % 200 for i in range(count)]


def crowded(
    *, steps_in_flight: int = 1, prefix_caching: bool = False, num_host_blocks: int = 40
) -> World:
    """A pool of 16 blocks and two sequences that fill it; the second will have to give way."""
    limits = make_limits(
        max_model_len=60,
        steps_in_flight=steps_in_flight,
        prefix_caching=prefix_caching,
        num_host_blocks=num_host_blocks,
    )
    world = World(limits=limits, num_blocks=16)
    world.request(0, words(0, 30), max_tokens=30)
    world.request(1, words(100, 30), max_tokens=30)
    return world


def run_until_swapped(world: World) -> StepPlan:
    while True:
        plan = world.plan()
        if plan is None:
            world.complete()
        elif plan.copies is not None:
            return plan


def finish(world: World) -> int:
    """Run to the end; how many positions were computed."""
    computed = 0
    while (plan := world.plan()) is not None or world.plans:
        if plan is None:
            world.complete()
        else:
            computed += plan.num_tokens
    for serial, request in world.requests.items():
        assert world.said[serial] == world.answer(request)
    world.plan()
    world.assert_is_empty()
    return computed


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3, 4])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_whoever_was_swapped_says_the_same_and_computes_no_more_than_its_last_block_again(
    steps_in_flight: int, prefix_caching: bool
) -> None:
    world = crowded(steps_in_flight=steps_in_flight, prefix_caching=prefix_caching)

    computed = finish(world)

    assert world.preemptions == world.batcher.swaps == 1
    assert world.moved_blocks >= 2
    once = sum(len(r.prompt) + r.max_tokens - 1 for r in world.requests.values())
    assert once <= computed <= once + BLOCK + steps_in_flight


def test_the_tail_is_copied_before_it_is_given_to_anybody() -> None:
    world = crowded()
    plan = run_until_swapped(world)

    assert plan.copies is not None
    assert len(plan.copies.out_blocks) == len(plan.copies.out_hosts) == 1
    assert len(plan.copies.in_blocks) == 0
    assert not world.pool.is_free(int(plan.copies.out_blocks[0]))  # while the copy is in flight
    assert world.pool.host is not None
    assert world.pool.host.num_held == 1


def test_a_plan_may_consist_of_copies_alone() -> None:
    world = crowded()
    only_copies = 0
    while (plan := world.plan()) is not None or world.plans:
        if plan is None:
            world.complete()
        else:
            only_copies += len(plan.slots) == 0

    assert only_copies > 0
    assert set(world.ended) == {0, 1}


def test_it_goes_on_from_where_its_image_ends() -> None:
    world = crowded()
    run_until_swapped(world)
    while True:
        plan = world.plan()
        if plan is None:
            world.complete()
        elif plan.copies is not None and len(plan.copies.in_blocks):
            break

    [row] = plan.new_rows
    assert plan.copies is not None
    loaded = plan.copies.in_blocks.tolist()
    end = int(plan.starts[plan.slots.tolist().index(row.slot)])
    assert row.block_ids.tolist()[end // BLOCK - len(loaded) : end // BLOCK] == loaded
    finish(world)


def test_what_does_not_fit_into_host_memory_is_computed_again() -> None:
    world = crowded(num_host_blocks=1)

    computed = finish(world)

    once = sum(len(r.prompt) + r.max_tokens - 1 for r in world.requests.values())
    assert world.preemptions == 1
    assert computed > once + BLOCK


def test_blocks_that_others_share_are_not_worth_moving() -> None:
    """Of three blocks two are shared: moving them all takes longer than computing one again."""
    costs = SwapCosts(block_s=1.0, token_s=1.0)
    host = HostTier(8, BLOCK, costs)

    assert host.save(0, first=0, blocks=[1, 2, 3], num_alone=1, fence=0) == []
    assert host.save(1, first=0, blocks=[1, 2, 3], num_alone=3, fence=0) != []


def test_an_image_that_is_not_reached_any_more_is_given_back() -> None:
    """More is lost before it than there is room for, so it would not be next to anything."""
    host = HostTier(4, BLOCK, SwapCosts(block_s=1.0, token_s=1.0))
    first = host.save(0, first=5, blocks=[7, 8], num_alone=2, fence=3)
    second = host.save(0, first=0, blocks=[1, 2, 3, 4, 5], num_alone=5, fence=9)

    assert set(first).isdisjoint(second)  # a copy to the first may still be in flight
    assert (len(second), host.end_of(0), host.num_free) == (2, 2, 0)
    host.settle(9)
    assert host.num_free == 2
    assert host.load(0, first=1, fence=10) == second[1:]
    host.settle(10)
    assert host.num_free == 4


@pytest.mark.parametrize("end", ["abort", "stop_matched"])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_whoever_ends_with_an_image_gives_it_back(end: str, when: str) -> None:
    world = crowded(steps_in_flight=2)
    run_until_swapped(world)
    if when == "later":
        for _ in range(6):
            world.plan()
            world.complete()
    assert world.pool.host is not None
    assert world.pool.host.num_held
    getattr(world.batcher, end)(1)

    world.run()
    world.plan()

    assert world.ended[1].reason in (FinishReason.ABORT, FinishReason.STOP)
    world.assert_is_empty()


def test_a_deadline_gives_an_image_back() -> None:
    world = crowded()
    world.batcher.abort(1)
    world.add(make_request(2, words(100, 30), max_tokens=30, deadline_ns=50))
    run_until_swapped(world)

    world.batcher.expire(50)
    world.run()
    world.plan()

    assert world.ended[2].reason is FinishReason.TIMEOUT
    world.assert_is_empty()


def test_a_failed_copy_is_not_read() -> None:
    """Rule 18: the step that was to copy the tail gave nothing, so there is no image."""
    world = crowded(steps_in_flight=2)
    run_until_swapped(world)
    while world.plans and world.plans[0].copies is None:
        world.complete()
    world.fail_step()

    assert world.pool.host is not None
    world.plan()
    assert world.pool.host.num_held == 0
    finish(world)


def test_an_image_outlives_a_reset_of_the_cache_and_a_pause() -> None:
    world = crowded(prefix_caching=True)
    run_until_swapped(world)
    world.pool.reset_cache()
    world.batcher.is_paused = True
    while world.plans:
        world.complete()
    assert world.plan() is None
    world.batcher.is_paused = False

    finish(world)

    assert world.moved_blocks > 2


def test_other_weights_make_every_image_void() -> None:
    """Rule 27."""
    world = crowded()
    run_until_swapped(world)
    world.want_weights("others")
    world.finish_weights()
    assert world.pool.host is not None
    assert world.pool.host.num_held == 0

    world.run()
    world.plan()

    for serial, request in world.requests.items():
        assert world.said[serial] == world.answer(request)
    world.assert_is_empty()


def test_a_slot_that_is_needed_takes_the_image_with_it() -> None:
    limits = make_limits(max_num_seqs=1, prefix_caching=False, num_host_blocks=40)
    world = World(limits=limits, num_blocks=6)
    for serial in range(4):
        world.request(serial, words(30 * serial, 12), max_tokens=9, priority=-serial)
        world.plan()
        while world.plans:
            world.complete()
            world.plan()
            if len(world.said[serial]) > 1:
                break
        while world.plans:
            world.complete()

    finish(world)

    assert list(world.ended) == [3, 2, 1, 0]


def test_the_simulation_charges_the_copies_and_tells_of_them() -> None:
    """An overload: what is moved takes time, and less of it than computing it again."""
    trace = make_trace(30, every=0.02, prompt_tokens=60, output_tokens=100)
    memory = HostMemory(num_blocks=400, block_copy_s=0.5e-3, token_s=1e-3)
    options: dict[str, Any] = {"num_blocks": 160, "prefix_caching": False}

    dropped = run(trace, **options)
    swapped = run(trace, memory=memory, **options)
    slowly = run(trace, memory=replace(memory, block_copy_s=1.9e-3), **options)
    too_slow = run(trace, memory=replace(memory, block_copy_s=2.1e-3), **options)

    assert dropped.swaps == dropped.moved_blocks == 0
    assert swapped.swaps > 0
    assert swapped.moved_blocks > swapped.swaps
    assert swapped.computed_tokens < dropped.computed_tokens
    assert swapped.seconds < slowly.seconds
    assert too_slow.moved_blocks == 0  # two ways of 2.1 ms against four tokens of 1 ms
    assert too_slow.seconds == dropped.seconds


def test_an_engine_swaps_and_tells_of_it() -> None:
    async def main() -> None:
        prompts = [[(i * 31 + k) % 90 + 33 for k in range(40)] for i in range(6)]
        params = SamplingParams(max_tokens=60)
        options: dict[str, Any] = {"max_model_len": 128, "check_invariants": True}
        async with make_engine(num_blocks=48, num_host_blocks=200, **options) as engine:
            results = await asyncio.gather(*(engine.generate(p, params) for p in prompts))
            await settle(engine, steps=4)
            stats = engine.stats()
            assert is_empty(engine)
        assert stats.swaps > 0
        assert stats.host_blocks_moved > stats.swaps
        assert (stats.host_blocks_total, stats.host_blocks_held) == (200, 0)
        for prompt, result in zip(prompts, results, strict=True):
            answer = Oracle().answer(prompt, 60, stops=(256, 258))
            assert list(result.token_ids) == answer

    run_virtual(main())


def test_no_host_memory_can_be_said_in_two_ways() -> None:
    assert count_host_blocks(None, None, 64) == count_host_blocks(0, 2**20, 64) == 0
    assert count_host_blocks(None, 0, 64) == 0
    assert count_host_blocks(None, 200, 64) == 3
    assert count_host_blocks(7, 200, 64) == 7
