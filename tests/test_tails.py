"""Preemption that drops only a tail (rule 16): what is kept, who may take it, and how it ends."""

from typing import Any

import pytest

import stepahead.kvpool.pool as pool_module
from stepahead.actors.batching.ledger import Ledger
from stepahead.actors.batching.roster import Roster
from stepahead.actors.batching.sequence import Sequence
from stepahead.actors.batching.victims import Victims
from stepahead.kvpool.cuts import plan_cuts
from stepahead.messages import FinishReason, Generate

from .batching import BLOCK, World, make_limits, make_request
from .simulations import make_trace, run


def words(start: int, count: int) -> list[int]:
    return [(start + i) % 200 for i in range(count)]


def crowded(*, steps_in_flight: int = 1, prefix_caching: bool = False) -> World:
    """A pool of 16 blocks and two sequences that fill it; the second will have to give way."""
    limits = make_limits(
        max_model_len=60, steps_in_flight=steps_in_flight, prefix_caching=prefix_caching
    )
    world = World(limits=limits, num_blocks=16)
    world.request(0, words(0, 30), max_tokens=30)
    world.request(1, words(100, 30), max_tokens=30)
    return world


def run_until_preempted(world: World) -> None:
    while not world.preemptions:
        if world.plan() is None:
            world.complete()


def slot_of(world: World, serial: int) -> int:
    sequence = world.batcher._roster.get(serial)
    assert sequence is not None
    assert sequence.slot is not None
    return sequence.slot


def test_who_gives_way_for_one_block_keeps_the_others() -> None:
    world = crowded()
    run_until_preempted(world)
    slot = slot_of(world, 1)

    assert len(world.pool.table(slot)) == 7  # of 8
    assert world.batcher._ledger.scheduled[slot] == 7 * BLOCK
    assert world.batcher.num_waiting == 1


def test_it_goes_on_from_what_it_kept() -> None:
    world = crowded()
    run_until_preempted(world)
    slot = slot_of(world, 1)
    while (plan := world.plan()) is None or not any(row.slot == slot for row in plan.new_rows):
        kept = world.batcher._ledger.scheduled[slot]
        world.complete()

    assert kept > 0
    assert dict(zip(plan.slots.tolist(), plan.starts.tolist(), strict=True))[slot] == kept
    world.run()
    for serial, request in world.requests.items():
        assert world.said[serial] == world.answer(request)


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_fewer_positions_are_computed_than_from_the_start_again(
    steps_in_flight: int, prefix_caching: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overload in the simulation: 30 requests, and a pool for about four of them."""
    trace = make_trace(30, every=0.02, prompt_tokens=60, output_tokens=100)

    def computed() -> int:
        result = run(
            trace, num_blocks=160, steps_in_flight=steps_in_flight, prefix_caching=prefix_caching
        )
        assert result.finished == 30
        assert result.preemptions > 0
        return result.computed_tokens

    tails = computed()

    def everything(*args: Any) -> tuple[dict[int, int], int]:
        cuts, gained = plan_cuts(*args)
        return dict.fromkeys(cuts, 0), gained

    monkeypatch.setattr(pool_module, "plan_cuts", everything)

    assert tails < computed()


def test_what_one_that_waits_holds_is_taken_before_anybody_else_gives_way() -> None:
    world = crowded()
    run_until_preempted(world)
    slot = slot_of(world, 1)
    before = len(world.pool.table(slot))
    for _ in range(3 * BLOCK):
        world.plan()
        world.complete()

    assert len(world.pool.table(slot)) < before
    assert world.preemptions == 1


def test_victims_come_in_one_order_and_who_waits_serves_everybody() -> None:
    """Rules 10 and 11: serials 0 to 4 are in the order of importance; 1 and 3 wait."""
    ledger = Ledger(num_slots=8, max_model_len=64, block_size=BLOCK)
    roster = Roster(ledger)
    sequences = [Sequence(make_request(serial), make_request(serial).prompt) for serial in range(5)]
    for slot, sequence in enumerate(sequences):
        roster.add(sequence)
        ledger.assign(slot, sequence)
        ledger.place(slot, 0, 2)
        if slot not in (1, 3):
            roster.run(sequence)
    victims, order = Victims(ledger, roster), roster.running.slots

    of_first, ranks = victims.of_growth(order, first=0)
    of_last, _ = victims.of_growth(order, first=2)

    assert of_first.tolist() == [4, 3, 2, 1]
    assert ranks.tolist() == [2, 3, 1, 3]
    assert of_last.tolist() == [3, 1]
    assert victims.of_admission(sequences[1], order[2:]).tolist() == [4, 3]
    assert victims.of_admission(sequences[3], order[2:]).tolist() == [4]


def test_a_seat_is_given_up_without_any_block() -> None:
    world = World(limits=make_limits(max_num_seqs=1, prefix_caching=False))
    lesser = world.request(0, words(0, 18), max_tokens=20, priority=5)
    world.plan()
    world.complete()
    urgent = world.request(1, words(90, 6), max_tokens=3, priority=1)
    plans = []
    while (plan := world.plan()) is not None or world.plans:
        if plan is None:
            world.complete()
        else:
            plans.append(plan)

    assert world.preemptions == 1
    assert sum(plan.num_tokens for plan in plans) <= 6 + 3 + 20 + BLOCK
    for request in (lesser, urgent):
        assert world.said[request.serial] == world.answer(request)


@pytest.mark.parametrize("end", ["abort", "stop_matched"])
def test_who_ends_while_it_waits_gives_its_blocks_back(end: str) -> None:
    world = crowded()
    run_until_preempted(world)
    assert world.pool.table(slot_of(world, 1))
    getattr(world.batcher, end)(1)

    world.run()
    world.plan()

    assert world.ended[1].reason in (FinishReason.ABORT, FinishReason.STOP)
    world.assert_is_empty()


def test_a_deadline_of_one_that_waits_gives_its_blocks_back() -> None:
    world = World(limits=make_limits(max_num_seqs=1))
    world.request(0, words(0, 18), max_tokens=20, priority=5, deadline_ns=10)
    world.plan()
    world.complete()
    world.request(1, words(90, 6), max_tokens=30)
    world.plan()
    assert world.pool.table(slot_of(world, 0))

    world.batcher.expire(10)
    world.run()
    world.plan()

    assert world.ended[0].reason is FinishReason.TIMEOUT
    world.assert_is_empty()


def test_a_failed_step_takes_from_those_that_wait_what_it_was_to_write() -> None:
    """Rule 18: what is kept may have been in flight."""
    world = crowded(steps_in_flight=4)
    while not world.preemptions:
        if world.plan() is None:
            world.complete()
    slot = slot_of(world, 1)
    assert world.pool.table(slot)
    assert any(slot in plan.slots.tolist() for plan in world.plans)

    world.fail_step()

    assert world.batcher._ledger.scheduled[slot] == 0
    world.run()
    for serial, request in world.requests.items():
        assert world.said[serial] == world.answer(request)


def test_a_slot_that_is_needed_is_taken_from_one_that_waits_with_its_blocks() -> None:
    world = World(limits=make_limits(max_num_seqs=1, prefix_caching=False))
    requests: list[Generate] = []
    for serial in range(4):
        requests.append(
            world.request(serial, words(30 * serial, 9), max_tokens=9, priority=-serial)
        )
        world.plan()
        while world.plans:
            world.complete()

    world.run()

    assert list(world.ended) == [3, 2, 1, 0]
    for request in requests:
        assert world.said[request.serial] == world.answer(request)
    world.plan()
    world.assert_is_empty()
