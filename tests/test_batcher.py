"""The Batcher by plain calls, against the oracle."""

from collections.abc import Callable

import pytest

from stepahead.actors.batching.limits import MAX_BYPASSES
from stepahead.gpu.oracle import Oracle
from stepahead.messages import FinishReason, RowFailed, StepDone, StepFailed, frozen_ints

from .batching import BLOCK, World, make_limits


def words(start: int, count: int) -> list[int]:
    return [(start + i) % 200 for i in range(count)]


def test_the_next_decode_is_planned_before_the_previous_token_is_known() -> None:
    world = World()
    world.request(1, words(0, 3), max_tokens=4)

    prefill, decode = world.plan(), world.plan()

    assert prefill is not None
    assert decode is not None
    assert (prefill.starts.tolist(), prefill.lengths.tolist()) == ([0], [3])
    assert (decode.starts.tolist(), decode.lengths.tolist()) == ([3], [1])
    assert decode.new_rows == ()
    assert world.plan() is None


def test_no_token_is_ever_planned_past_max_tokens() -> None:
    world = World(limits=make_limits(steps_in_flight=4))
    request = world.request(1, words(0, 5), max_tokens=3)
    planned = 0
    while (plan := world.plan()) is not None:
        planned += plan.num_tokens

    world.run()

    assert planned == 5 + 3 - 1
    assert world.said[1] == world.answer(request)
    assert world.ended[1].reason is FinishReason.LENGTH


def test_a_stop_found_one_step_late_drops_the_extra_token() -> None:
    world = World(oracle=Oracle(eos_every=6))
    request = world.request(1, words(3, 5), max_tokens=100)

    world.run()

    assert world.said[1] == world.answer(request)
    assert world.said[1][-1] == 256
    assert world.ended[1].stop_token_id == 256
    world.plan()
    world.assert_is_empty()


def test_a_stop_id_does_not_stop_before_min_tokens() -> None:
    world = World(oracle=Oracle(eos_every=2))
    world.request(1, words(3, 5), max_tokens=30, min_tokens=10)

    world.run()

    assert 256 not in world.said[1][:10]
    assert len(world.said[1]) > 10


@pytest.mark.parametrize("num_prompt", [15, 16, 17, 31, 32, 33, 48, 64])
def test_no_chunk_samples_but_the_last(num_prompt: int) -> None:
    """Field case 097: exactly 4 chunks, and one token more or less."""
    world = World(limits=make_limits(max_num_batched_tokens=16))
    request = world.request(1, words(7, num_prompt), max_tokens=3)
    plans = []
    while (plan := world.plan()) is not None:
        plans.append(plan)
        world.complete()

    chunks = -(-num_prompt // 16)
    assert [plan.samples.tolist() for plan in plans[:chunks]] == [[False]] * (chunks - 1) + [[True]]
    assert world.said[1] == world.answer(request)


def test_prefill_and_decode_share_one_budget() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=10))
    world.request(1, words(0, 4), max_tokens=20)
    world.plan()
    world.request(2, words(50, 30), max_tokens=4)

    mixed = world.plan()

    assert mixed is not None
    assert mixed.lengths.tolist() == [1, 9]
    assert mixed.samples.tolist() == [True, False]


def test_long_prompts_are_capped_only_beside_others() -> None:
    world = World(limits=make_limits(long_prefill_token_threshold=8))
    world.request(1, words(0, 40), max_tokens=4)
    alone = world.plan()
    world.request(2, words(50, 30), max_tokens=4)
    beside = world.plan()

    assert alone is not None
    assert beside is not None
    assert alone.lengths.tolist() == [40]
    assert beside.lengths.tolist() == [1, 8]


def test_an_identical_prompt_of_the_same_step_shares_its_blocks() -> None:
    """Field case 083: what the first row writes, the second may read in the same step."""
    world = World()
    first = world.request(1, words(0, 22), max_tokens=4)
    second = world.request(2, words(0, 22), max_tokens=4)

    plan = world.plan()

    assert plan is not None
    assert plan.lengths.tolist() == [22, 2]
    world.run()
    assert world.said[1] == world.said[2] == world.answer(first) == world.answer(second)


def test_a_second_turn_finds_the_whole_first_one() -> None:
    world = World()
    first = world.request(1, words(0, 21), max_tokens=12)
    world.run()
    world.request(2, [*words(0, 21), *world.answer(first), 5], max_tokens=2)

    world.plan()

    [admitted] = world.reports[-1].admitted
    assert admitted.cached_tokens == (21 + 12 - 1) // BLOCK * BLOCK


def test_a_prefix_that_many_want_at_once_is_computed_once() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=16, long_prefill_token_threshold=8))
    common, num_tokens = words(0, 40), 0
    requests = [world.request(serial, [*common, 90 + serial, 7]) for serial in range(1, 6)]
    world.request(9, words(60, 8), max_tokens=1)  # has nothing in common, and goes its way

    while (plan := world.plan()) is not None:
        num_tokens += plan.num_tokens
        world.complete()

    assert num_tokens == 40 + 5 * (2 + 3) + 8
    assert [len(world.said[r.serial]) for r in requests] == [4] * 5
    assert [world.said[r.serial] for r in requests] == [world.answer(r) for r in requests]


def test_who_comes_late_awaits_a_prefix_that_a_later_number_computes() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=16, long_prefill_token_threshold=8))
    world.request(2, [*words(0, 40), 92])
    world.plan()
    world.request(1, [*words(0, 40), 91])  # texts may take longer than others to become tokens

    plan = world.plan()

    assert plan is not None
    assert [state.slot for state in plan.new_rows] == []
    world.run()
    assert [len(world.said[serial]) for serial in (1, 2)] == [4, 4]


def test_nobody_awaits_the_prefix_of_somebody_less_important() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=16, long_prefill_token_threshold=8))
    world.request(1, [*words(0, 40), 91], priority=1)
    world.plan()
    urgent = world.request(2, [*words(0, 40), 92], priority=0)

    plan = world.plan()

    assert plan is not None
    assert [state.num_prompt_tokens for state in plan.new_rows] == [len(urgent.prompt)]


@pytest.mark.parametrize("num_said", range(1, 20))
def test_nobody_awaits_what_is_computed_and_not_findable_yet(num_said: int) -> None:
    world = World()
    first = world.request(1, words(0, 9), max_tokens=20)
    while len(world.said[1]) < num_said:
        world.plan()
        world.complete()

    world.request(2, [*words(0, 9), *world.answer(first)[:num_said], 5])
    plan = world.plan()

    assert plan is not None
    assert [state.num_prompt_tokens for state in plan.new_rows] == [9 + num_said + 1]


def test_who_awaited_a_prefix_runs_when_its_maker_ends_early() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=16, long_prefill_token_threshold=8))
    world.request(1, [*words(0, 40), 91])
    second = world.request(2, [*words(0, 40), 92])
    plan = world.plan()
    assert plan is not None
    assert len(plan.new_rows) == 1

    world.batcher.abort(1)
    world.run()

    assert world.said[2] == world.answer(second)


def test_nothing_is_shared_without_prefix_caching() -> None:
    world = World(limits=make_limits(prefix_caching=False))
    world.request(1, words(0, 22), max_tokens=4)
    world.request(2, words(0, 22), max_tokens=4)

    plan = world.plan()

    assert plan is not None
    assert plan.lengths.tolist() == [22, 22]


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3, 4])
@pytest.mark.parametrize("budget", [8, 64])
def test_preempted_sequences_say_what_they_would_have_said(
    steps_in_flight: int, budget: int
) -> None:
    """Field cases 088, 089, 094 and 095: a pool for one and a half of them."""
    limits = make_limits(
        steps_in_flight=steps_in_flight, max_num_batched_tokens=budget, max_model_len=60
    )
    world = World(limits=limits, num_blocks=22)
    requests = [world.request(i, words(20 * i, 20), max_tokens=40) for i in range(3)]

    world.run()

    assert world.preemptions > 0
    for request in requests:
        assert world.said[request.serial] == world.answer(request)
    world.plan()
    world.assert_is_empty()


def test_the_earliest_request_is_never_preempted() -> None:
    world = World(limits=make_limits(max_model_len=60), num_blocks=18)
    for i in range(4):
        world.request(i, words(20 * i, 20), max_tokens=40)

    world.run()

    assert all(p.serial != 0 for report in world.reports for p in report.preempted)
    ended = [e.serial for report in world.reports for e in report.ended]
    assert ended[0] == 0


def test_a_preempted_sequence_is_not_resumed_while_a_step_mentions_it() -> None:
    """Rule 6."""
    world = World(limits=make_limits(max_model_len=60, steps_in_flight=3), num_blocks=10)
    world.request(0, words(0, 20), max_tokens=20)
    world.request(1, words(50, 17), max_tokens=20)
    while (plan := world.plan()) is not None or not world.preemptions:
        if plan is None:
            world.complete()
    slot = world.batcher._roster.get(1).slot  # type: ignore[union-attr]  # it is live
    mentions = [plan.step for plan in world.plans if slot in plan.slots.tolist()]
    assert mentions

    while world.plans and world.plans[0].step <= mentions[-1]:
        plan = world.plan()
        assert plan is None or all(row.slot != slot for row in plan.new_rows)
        world.complete()


def test_a_sequence_that_lost_its_seat_waits_for_its_rows_before_it_runs_again() -> None:
    """Rule 6, where blocks are plentiful: the seat is free again at once."""
    world = World(limits=make_limits(max_num_seqs=1, steps_in_flight=4))
    request = world.request(1, words(0, 6), max_tokens=20, priority=5)
    world.plan()
    world.plan()
    world.request(2, words(90, 6), max_tokens=9, priority=1)
    world.plan()
    world.batcher.abort(2)

    assert world.plan() is None
    world.run()

    assert world.preemptions == 1
    assert world.said[1] == world.answer(request)


def test_a_slot_is_not_given_away_while_a_step_mentions_it() -> None:
    """Rule 7."""
    world = World(limits=make_limits(max_num_seqs=1, steps_in_flight=4))
    world.request(1, words(0, 6), max_tokens=20)
    world.plan()
    world.batcher.abort(1)
    world.request(2, words(20, 6), max_tokens=20)
    world.plan()
    world.batcher.abort(2)
    third = world.request(3, words(40, 6), max_tokens=5)

    assert world.plan() is None  # both slots are still mentioned
    world.run()

    assert world.said[3] == world.answer(third)


def test_a_more_important_request_goes_first() -> None:
    world = World(limits=make_limits(max_num_seqs=1))
    world.request(1, words(0, 4), max_tokens=2, priority=1)
    world.request(2, words(10, 4), max_tokens=2, priority=0)

    world.run()

    assert list(world.ended) == [2, 1]


def test_a_more_important_request_takes_a_seat_when_all_are_taken() -> None:
    world = World(limits=make_limits(max_num_seqs=2))
    lesser = [world.request(i, words(10 * i, 6), max_tokens=30, priority=5) for i in range(2)]
    world.plan()
    urgent = world.request(9, words(90, 6), max_tokens=3, priority=1)

    world.run()

    assert next(iter(world.ended)) == 9
    assert world.preemptions == 1
    for request in [*lesser, urgent]:
        assert world.said[request.serial] == world.answer(request)


def test_an_equal_request_never_preempts() -> None:
    world = World(limits=make_limits(max_num_seqs=2))
    for i in range(4):
        world.request(i, words(10 * i, 6), max_tokens=10)

    world.run()

    assert world.preemptions == 0
    assert list(world.ended) == [0, 1, 2, 3]


def test_many_preempted_sequences_do_not_keep_a_more_important_one_out() -> None:
    world = World(limits=make_limits(max_num_seqs=1))
    requests = [world.request(i, words(10 * i, 6), max_tokens=6, priority=-i) for i in (0,)]
    for i in range(1, 6):
        world.plan()
        requests.append(world.request(i, words(10 * i, 6), max_tokens=6, priority=-i))
        while world.plans:
            world.complete()

    world.run()

    assert list(world.ended) == [5, 4, 3, 2, 1, 0]
    for request in requests:
        assert world.said[request.serial] == world.answer(request)


@pytest.mark.parametrize("after", range(6))
def test_an_abort_at_any_time_gives_every_block_back(after: int) -> None:
    """Field cases 100, 101, 109 and 110."""
    world = World(num_blocks=12)
    world.request(1, words(0, 20), max_tokens=8)
    waiting = world.request(2, words(40, 20), max_tokens=8)
    for _ in range(after):
        if world.plan() is None:
            world.complete()

    world.batcher.abort(1)
    world.batcher.abort(1)
    world.batcher.abort(77)
    world.run()
    world.plan()

    assert world.ended[1].reason is FinishReason.ABORT
    assert world.said[2] == world.answer(waiting)
    world.assert_is_empty()


def test_a_request_that_ends_at_its_first_token_gives_its_slot_back() -> None:
    """Field case 098."""
    world = World(limits=make_limits(max_num_seqs=2))
    steady = world.request(0, words(0, 4), max_tokens=200)
    for serial in range(1, 60):
        world.request(serial, words(serial, 3), max_tokens=1)
        if world.plan() is None:
            world.complete()

    world.run()

    assert world.said[0] == world.answer(steady)
    assert len(world.ended) == 60


def test_deadlines_end_what_runs_and_what_waits() -> None:
    world = World(limits=make_limits(max_num_seqs=1))
    world.request(1, words(0, 4), max_tokens=50, deadline_ns=100)
    world.request(2, words(10, 4), max_tokens=50, queue_deadline_ns=50)
    third = world.request(3, words(20, 4), max_tokens=5, queue_deadline_ns=1_000)
    world.plan()
    assert world.batcher.next_deadline_ns == 50

    world.batcher.expire(99)
    world.plan()
    assert [s for s, e in world.ended.items() if e.reason is FinishReason.TIMEOUT] == [2]
    world.batcher.expire(100)
    world.run()
    world.batcher.expire(5_000)

    assert world.ended[1].reason is FinishReason.TIMEOUT
    assert world.said[3] == world.answer(third)
    assert all(a.serial != 2 for report in world.reports for a in report.admitted)


def test_a_failed_step_is_run_again() -> None:
    world = World()
    requests = [world.request(i, words(30 * i, 9), max_tokens=6) for i in range(3)]
    world.plan()
    world.complete()
    world.plan()
    world.plan()
    for _ in range(2):
        world.batcher.fail(StepFailed(world._take_oldest().step, "out of memory"))

    world.run()

    for request in requests:
        assert world.said[request.serial] == world.answer(request)
    world.plan()
    world.assert_is_empty()


def test_a_request_whose_steps_always_fail_ends_with_the_error() -> None:
    world = World()
    world.request(1, words(0, 9), max_tokens=6)
    for _ in range(20):
        if world.plan() is None and world.plans:
            world.batcher.fail(StepFailed(world._take_oldest().step, "out of memory"))

    world.plan()

    assert world.ended[1].reason is FinishReason.ERROR
    assert world.ended[1].error == "out of memory"
    world.assert_is_empty()


def test_a_row_that_failed_fails_alone() -> None:
    """Field case 062."""
    world = World()
    world.request(1, words(0, 9), max_tokens=6)
    other = world.request(2, words(50, 9), max_tokens=6)
    world.plan()
    result = world.device.run(world._take_oldest())
    failed = StepDone(
        result.step,
        frozen_ints([-1, int(result.token_ids[1])]),
        (RowFailed(0, "the logits are not numbers"),),
    )

    world.batcher.complete(failed)
    world.run()
    world.plan()

    assert world.ended[1].error == "the logits are not numbers"
    assert world.said[1] == []
    assert world.said[2] == world.answer(other)
    world.assert_is_empty()


def test_a_steady_decode_step_sends_the_pool_no_message() -> None:
    world = World()
    world.request(1, words(0, BLOCK + 1), max_tokens=20)
    for _ in range(3):
        world.plan()
        world.complete()
    asked: list[str] = []

    def listen(name: str, ask: Callable[[object], object]) -> Callable[[object], object]:
        def asks(message: object) -> object:
            asked.append(name)
            return ask(message)

        return asks

    for name in ("reserve", "admit", "publish", "release"):
        setattr(world.pool, name, listen(name, getattr(world.pool, name)))

    quiet = 0
    for _ in range(BLOCK):
        before = len(asked)
        world.plan()
        world.complete()
        quiet += len(asked) == before

    assert quiet >= BLOCK - 2


def test_smaller_requests_pass_one_that_does_not_fit_but_not_for_ever() -> None:
    """Rule 12: a head that does not fit neither blocks the rest nor starves."""
    world = World(limits=make_limits(max_num_seqs=3), num_blocks=30)
    world.request(0, words(0, 40), max_tokens=60)
    big = world.request(1, words(50, 100), max_tokens=4)
    for serial in range(2, 60):
        world.request(serial, words(serial, 6), max_tokens=10)

    world.run()

    ends = list(world.ended)
    assert ends.index(2) < ends.index(1)  # a small one went first
    assert ends.index(1) < 25  # yet not all of them did
    assert world.said[1] == world.answer(big)


def test_waiting_raises_a_request_by_a_class_and_running_does_not() -> None:
    """Rule 13."""
    world = World(limits=make_limits(max_num_seqs=1, ageing_ns=10))
    world.request(1, words(0, 6), max_tokens=8)
    world.request(2, words(10, 6), max_tokens=8, priority=2)
    world.plan()
    world.now = 25
    world.request(3, words(20, 6), max_tokens=8, priority=1)

    world.run()

    assert list(world.ended) == [1, 2, 3]


def test_a_class_gained_by_waiting_takes_nothing_from_a_running_equal() -> None:
    """Rule 13: otherwise whoever gave way gained a class in turn, and none came to an end."""
    world = World(limits=make_limits(max_num_seqs=1, max_num_batched_tokens=2, ageing_ns=3))
    for serial in (1, 2):
        world.request(serial, words(20 * serial, 12), max_tokens=4)

    for now in range(40):
        world.now = now
        world.plan()
        if world.plans:
            world.complete()

    assert list(world.ended) == [1, 2]
    assert world.preemptions == 0


def test_after_some_preemptions_a_sequence_resumes_only_where_it_can_stay() -> None:
    """Rule 14: preemptions per request are bounded."""
    world = World(limits=make_limits(max_model_len=60), num_blocks=16)
    requests = [world.request(i, words(20 * i, 8), max_tokens=50) for i in range(8)]

    world.run()

    by_serial = [p.serial for report in world.reports for p in report.preempted]
    assert by_serial
    assert max(by_serial.count(serial) for serial in range(8)) <= 3
    for request in requests:
        assert world.said[request.serial] == world.answer(request)


def test_long_prompts_share_a_budget_that_is_too_small_for_them() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=100), num_blocks=200)
    world.request(1, words(0, 101), max_tokens=2)
    world.plan()
    world.request(2, words(150, 201), max_tokens=2)
    world.plan()
    world.request(3, words(50, 201), max_tokens=2)
    world.complete()
    world.complete()
    shared = []
    for _ in range(2):
        plan = world.plan()
        assert plan is not None
        shared.append(plan.lengths.tolist())

    assert all(max(lengths) <= 100 for lengths in shared)
    world.run()
    assert set(world.ended) == {1, 2, 3}


def test_whoever_started_upon_the_blocks_of_a_failed_row_starts_again() -> None:
    """Rule 19."""
    world = World()
    world.request(1, words(0, 22), max_tokens=6)
    sharing = world.request(2, words(0, 22), max_tokens=6)
    world.plan()
    result = world.device.run(world._take_oldest())
    failed = StepDone(
        result.step,
        frozen_ints([-1, int(result.token_ids[1]) + 1]),
        (RowFailed(0, "the logits are not numbers"),),
    )

    world.batcher.complete(failed)
    world._look()
    third = world.request(3, words(0, 22), max_tokens=6)
    world.run()

    assert world.ended[1].error == "the logits are not numbers"
    assert world.said[2] == world.answer(sharing)
    assert world.said[3] == world.answer(third)


def test_a_request_that_gave_up_leaves_no_block_that_was_never_written() -> None:
    """Rule 18: its last position was to be written by the very step that failed."""
    world = World()
    first = world.request(1, words(0, 2 * BLOCK - 1), max_tokens=20)
    for _ in range(2):
        world.plan()
        world.fail_step()
    world.plan()
    world.plan()
    world.complete()  # the token that fills the second block is known, its KV is in flight
    world.fail_step()
    world.plan()
    assert world.ended[1].reason is FinishReason.ERROR

    prompt = [*words(0, 2 * BLOCK - 1), world.answer(first)[0], 9]
    second = world.request(2, prompt, max_tokens=4)
    world.run()

    assert world.said[2] == world.answer(second)


@pytest.mark.parametrize(("num_blocks", "appended"), [(11, 4), (10, 1)])
def test_rows_get_their_next_blocks_together_while_there_is_one_for_everybody(
    num_blocks: int, appended: int
) -> None:
    """One row of four needs a block now, the others within a few positions."""
    world = World(num_blocks=num_blocks)
    for serial in range(4):
        world.request(serial, words(40 * serial, BLOCK + serial), max_tokens=40)
    world.plan()

    decode = world.plan()

    assert decode is not None
    assert len(decode.block_ids) == appended


def test_no_block_is_asked_for_that_no_token_will_need() -> None:
    world = World(num_blocks=60)
    world.request(1, words(0, BLOCK - 1), max_tokens=2)  # the last token needs no KV

    world.plan()
    world.plan()

    assert world.pool.num_held == 1


def test_steps_and_requests_are_counted_beyond_32_bits() -> None:
    world = World()
    steps = world.batcher.steps
    steps.posted = steps.done = world.pool._done = 2**31 - 3
    requests = [world.request(2**31 - 2 + i, [5, 6, 7, 8, i], max_tokens=9) for i in range(4)]

    world.run()

    assert all(world.said[r.serial] == world.answer(r) for r in requests)
    world.assert_is_empty()


def test_who_may_not_resume_yet_holds_up_nobody_behind_it() -> None:
    world = World(limits=make_limits(max_num_seqs=2))
    world.request(0, [1, 2, 3], max_tokens=253, stop_token_ids=())  # may come to need everything
    world.request(1, [4, 5, 6], max_tokens=20, priority=1, stop_token_ids=())
    for serial in (2, 3, 4):  # each takes the seat of the lesser one for a while
        world.plan()
        world.complete()
        world.request(serial, [serial], max_tokens=1)
        world.run_until_ended(serial)
    assert world.preemptions == 3

    for serial in range(5, 5 + 2 * MAX_BYPASSES):
        world.request(serial, [serial], max_tokens=1, priority=1)
        world.run_until_ended(serial)

    assert not {0, 1} & set(world.ended)
    world.run()
    assert world.said[1] == world.answer(world.requests[1])
    world.assert_is_empty()


def test_requests_that_ended_leave_no_timers_behind() -> None:
    world = World(limits=make_limits(ageing_ns=10**15))
    world.request(0, [1], max_tokens=200, deadline_ns=10**9, stop_token_ids=())  # due first

    for serial in range(1, 200):
        late = 10**12 + serial
        world.request(serial, [1], max_tokens=1, deadline_ns=late, queue_deadline_ns=late)
        world.batcher.abort(serial)

    assert len(world.batcher._deadlines._heap) < 100
    assert len(world.batcher._ageing._heap) < 100
    world.now = 10**9
    world.pass_time()
    assert world.ended[0].reason is FinishReason.TIMEOUT


def test_who_was_raised_and_may_take_no_seat_is_in_nobodys_way() -> None:
    world = World(limits=make_limits(max_num_seqs=1, ageing_ns=3))
    world.request(0, [1, 2, 3], max_tokens=100, priority=5, stop_token_ids=())
    world.plan()
    world.request(1, [4, 5, 6], max_tokens=3, priority=5)
    for _ in range(30):  # it gains more classes than there are
        world.pass_time()
        world.plan()
        world.complete()

    world.request(2, [7, 8], max_tokens=3)
    world.run_until_ended(2)
    world.run()

    assert list(world.ended) == [2, 1, 0]
