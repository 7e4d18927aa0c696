"""Chunks of long prompts beside others: so much work a step, wherever in its prompt a row is."""

import asyncio
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from stepahead.actors.backend import Backend
from stepahead.actors.batching.chunks import QUANTUM, fair_chunks
from stepahead.actors.recording import Recording, read_recording, replay
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.actors.wiring import batch_limits
from stepahead.gpu.null import NullDevice
from stepahead.messages import SamplingParams, StepPlan, frozen_ints

from .batching import World, make_limits
from .engines import make_config, make_device, make_engine, make_facts

WORK, CONTEXT = 256, 1536  # of a small model on two processors
LONG = 32_768


def words(start: int, count: int) -> list[int]:
    return [(start + i) % 200 for i in range(count)]


def work_of(start: int, chunk: int, context: int) -> float:
    """Of each position 1, and as much again for every `context` positions before it."""
    return chunk + chunk * start / context + chunk * chunk / (2 * context)


def chunks_of(length: int, work: int, context: int | None) -> list[tuple[int, int]]:
    """Where each chunk of a prompt starts, and how long it is."""
    start, chunks = 0, []
    while start < length:
        [chunk] = fair_chunks(frozen_ints([start]), work, context).tolist()
        chunks.append((start, chunk))
        start += chunk
    return chunks


def test_every_chunk_is_as_much_work_as_it_may_be() -> None:
    for start, chunk in chunks_of(LONG, WORK, CONTEXT):
        assert chunk % QUANTUM == 0
        assert work_of(start, chunk, CONTEXT) <= WORK or chunk == QUANTUM
        assert work_of(start, chunk + QUANTUM, CONTEXT) > WORK


def test_a_prompt_of_thousands_takes_a_step_for_about_each_share_of_its_work() -> None:
    length = 8_192

    num_chunks = len(chunks_of(length, WORK, CONTEXT))

    fewest = ceil(work_of(0, length, CONTEXT) / WORK)
    assert fewest == 118
    assert fewest <= num_chunks <= 1.25 * fewest


def test_chunks_of_many_rows_are_those_of_each() -> None:
    starts = frozen_ints(range(0, LONG, 7))

    together = fair_chunks(starts, WORK, CONTEXT)

    alone = [fair_chunks(frozen_ints([start]), WORK, CONTEXT).tolist() for start in starts.tolist()]
    assert [[chunk] for chunk in together.tolist()] == alone
    assert (np.diff(together) <= 0).all()


def test_where_all_positions_cost_the_same_all_chunks_are_equal() -> None:
    assert {chunk for _, chunk in chunks_of(LONG, 25, None)} == {25}


# Beside others


def lengths_of(world: World, serial: int) -> list[int]:
    """How long each chunk of a request's prompt is, until it is computed."""
    lengths: list[int] = []
    while not world.said[serial]:
        plan: StepPlan | None = world.plan()
        assert plan is not None
        [slot] = [
            slot
            for slot in plan.slots.tolist()
            if world.batcher._roster.at(slot).request.serial == serial
        ]
        lengths += plan.lengths[plan.slots == slot].tolist()
        world.complete()
    return lengths


def make_world(threshold: int | None = 64, doubling_context: int | None = 64) -> World:
    limits = make_limits(
        max_model_len=512,
        max_num_batched_tokens=128,
        long_prefill_token_threshold=threshold,
        doubling_context=doubling_context,
    )
    return World(limits=limits, num_blocks=256)


def beside_a_stream(world: World) -> None:
    world.request(1, [7, 8, 9], max_tokens=100)
    world.plan()
    world.complete()
    world.request(2, words(0, 400), max_tokens=2)


def test_beside_others_chunks_become_shorter_along_a_long_prompt() -> None:
    world = make_world()
    beside_a_stream(world)

    lengths = lengths_of(world, 2)

    assert lengths == [32, 32, *[16] * 21]
    world.run()
    assert world.said[2] == world.answer(world.requests[2])


def test_who_is_alone_takes_all_of_a_step_anywhere_in_its_prompt() -> None:
    world = make_world()
    world.request(1, words(0, 400), max_tokens=2)

    assert lengths_of(world, 1) == [128, 128, 128, 16]


def test_chunks_of_so_many_positions_do_not_become_shorter() -> None:
    world = make_world(threshold=50, doubling_context=None)
    beside_a_stream(world)

    assert lengths_of(world, 2) == [50] * 8


def test_who_goes_on_from_a_cached_prefix_starts_with_the_chunk_of_that_place() -> None:
    world = make_world(threshold=128)
    world.request(3, words(0, 201), max_tokens=1)
    world.run()
    beside_a_stream(world)

    assert lengths_of(world, 2)[0] == 16


# Where others only wait for what a row computes (rule 17)


def steps_of(world: World, serial: int) -> list[list[int]]:
    """The lengths of all rows in every step until a prompt is computed."""
    steps: list[list[int]] = []
    while not world.said[serial]:
        plan = world.plan()
        assert plan is not None
        steps.append(plan.lengths.tolist())
        world.complete()
    return steps


def with_prefix(world: World, *commons: int) -> None:
    """A prompt of 400, and others that have so much in common with it."""
    world.request(2, words(0, 400), max_tokens=2)
    for serial, common in enumerate(commons, 3):
        world.request(serial, [*words(0, common), 300, 300 + serial, 300], max_tokens=60)


def test_what_all_others_wait_for_is_computed_in_whole_steps() -> None:
    world = make_world()
    with_prefix(world, 302, 250)

    steps = steps_of(world, 2)

    assert steps[:3] == [[32], [128], [88, 5]]  # 248: there a block ends that is in all of them
    assert max(map(max, steps[3:])) <= 16
    world.run()
    for request in world.requests.values():
        assert world.said[request.serial] == world.answer(request)


def test_beside_a_stream_it_is_computed_in_chunks() -> None:
    world = make_world()
    world.request(1, [7, 8, 9], max_tokens=100)
    world.plan()
    world.complete()
    with_prefix(world, 302, 250)

    assert steps_of(world, 2)[:3] == [[1, 32], [1, 32], [1, 16]]


@pytest.mark.parametrize("commons", [(302, 5), (302, 250, 0), (302,) * 70], ids=len)
def test_it_is_computed_in_chunks_while_anybody_may_wait_for_something_else(
    commons: tuple[int, ...],
) -> None:
    """Of very many who wait not all are looked at."""
    world = make_world()
    with_prefix(world, *commons)

    steps = steps_of(world, 2)

    assert [lengths[0] for lengths in steps[:3]] == [32, 32, 16]


@pytest.mark.parametrize(("cache_salt", "length"), [(b"", 128), (b"other", 32)])
def test_who_would_not_find_it_does_not_wait_for_it(cache_salt: bytes, length: int) -> None:
    world = World(limits=replace(make_world().limits, max_num_seqs=1), num_blocks=256)
    world.request(2, words(0, 400), max_tokens=2)
    world.request(3, words(0, 400), max_tokens=2, cache_salt=cache_salt)

    assert steps_of(world, 2)[:2] == [[32], [length]]


def test_a_threshold_in_positions_is_kept_to_though_others_only_wait() -> None:
    world = make_world(threshold=25, doubling_context=None)
    with_prefix(world, 300)

    assert steps_of(world, 2)[:11] == [[25]] * 11


# Whole engines


def test_an_engine_on_a_device_that_knows_what_context_costs_replays(tmp_path: Path) -> None:
    prompts = ["a" * 200, "b" * 90, "c" * 5]

    async def run() -> None:
        config = make_config(max_num_batched_tokens=64)
        device = make_device(config)
        device.facts = replace(device.facts, fair_chunk=64, doubling_context=64)
        async with make_engine(
            device=device, max_num_batched_tokens=64, record=tmp_path / "run"
        ) as engine:
            await asyncio.gather(*map(engine.generate, prompts))

    run_virtual(run())

    recording = read_recording(tmp_path / "run")
    assert recording.header.setup.limits.doubling_context == 64
    assert replay(recording).difference is None
    assert replay(without_context(recording)).difference is not None


def without_context(recording: Recording) -> Recording:
    """As if every position had cost the same."""
    setup = recording.header.setup
    limits = replace(setup.limits, doubling_context=None)
    return replace(recording, header=replace(recording.header, setup=replace(setup, limits=limits)))


# What the limits are made of


@pytest.mark.parametrize(
    ("told", "limit"),
    [(None, (64, 1536)), (25, (25, None))],
)
def test_a_threshold_that_is_told_is_a_number_of_positions(
    told: int | None, limit: tuple[int, int | None]
) -> None:
    config = make_config(num_blocks=64, long_prefill_token_threshold=told)
    facts = replace(make_facts(config), fair_chunk=64, doubling_context=1536)

    limits = batch_limits(config, Backend(NullDevice(facts, 1), ToyTokenizer(), SamplingParams()))

    assert (limits.long_prefill_token_threshold, limits.doubling_context) == limit
