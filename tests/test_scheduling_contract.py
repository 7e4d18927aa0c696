"""What the Scheduler promises, by plain calls: who runs when, with what, and who gives way."""

from stepahead.messages import FinishReason, StepPlan

from .batching import World, make_limits


def words(start: int, count: int) -> list[int]:
    return [(start + i) % 200 for i in range(count)]


def serials(world: World, plan: StepPlan | None) -> list[int]:
    """Whose rows a step has, in planning order."""
    assert plan is not None
    return [world.batcher._roster.at(slot).request.serial for slot in plan.slots.tolist()]


def lengths(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return list(plan.lengths.tolist())


# Budgets


def test_prompts_that_fit_run_whole_in_one_step_and_in_the_order_they_came() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=64))
    for serial in range(5):
        world.request(serial, words(20 * serial, 8 + serial))

    plan = world.plan()

    assert serials(world, plan) == [0, 1, 2, 3, 4]
    assert lengths(plan) == [8, 9, 10, 11, 12]


def test_chunks_fill_the_budget_up_to_the_threshold_each() -> None:
    limits = make_limits(max_num_batched_tokens=64, long_prefill_token_threshold=25)
    world = World(limits=limits, num_blocks=128)
    requests = [world.request(serial, words(60 * serial, 70)) for serial in range(3)]

    first, second = world.plan(), world.plan()

    assert lengths(first) == [25, 25, 14]
    assert sum(lengths(second)) == 64
    assert max(lengths(second)) <= 25
    world.run()
    for request in requests:
        assert world.said[request.serial] == world.answer(request)


def test_long_prompts_get_equal_shares_of_a_budget_and_the_first_what_is_over() -> None:
    limits = make_limits(max_num_batched_tokens=50, long_prefill_token_threshold=20)
    world = World(limits=limits, num_blocks=128)
    for serial in range(3):
        world.request(serial, words(60 * serial, 90))

    assert lengths(world.plan()) == [20, 20, 10]
    assert lengths(world.plan()) == [18, 16, 16]


def test_a_newcomer_waits_a_step_for_a_long_prompt_and_not_for_all_of_it() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=20), num_blocks=128)
    long = world.request(1, words(0, 200))
    world.plan()
    short = world.request(2, words(100, 6))
    steps = []
    for _ in range(3):
        world.complete() if world.plans else None
        steps.append(lengths(world.plan()))

    assert steps == [[20], [10, 6], [19, 1]]
    world.run()
    for request in (long, short):
        assert world.said[request.serial] == world.answer(request)


def test_a_more_important_prompt_leaves_nothing_for_newcomers_of_lesser_classes() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=20), num_blocks=128)
    world.request(1, words(0, 100))
    world.request(2, words(100, 6), priority=1)

    steps = []
    for _ in range(5):
        steps.append(lengths(world.plan()))
        world.complete()

    assert steps == [[20]] * 5


def test_decodes_lose_nothing_to_a_newcomer() -> None:
    world = World(limits=make_limits(max_num_seqs=8, max_num_batched_tokens=8), num_blocks=64)
    for serial in range(6):
        world.request(serial, words(20 * serial, 1), max_tokens=30)
    world.plan()
    world.complete()
    world.request(6, words(150, 50))
    world.plan()
    world.complete()
    world.request(7, words(180, 2))

    for _ in range(6):
        assert lengths(world.plan())[:6] == [1] * 6
        world.complete()
    assert 7 in {a.serial for report in world.reports for a in report.admitted}


def test_a_decode_is_never_held_back_by_prefills_that_fill_the_budget() -> None:
    world = World(limits=make_limits(max_num_batched_tokens=16), num_blocks=128)
    steady = world.request(1, words(0, 4), max_tokens=30)
    world.plan()
    for serial in (2, 3):
        world.request(serial, words(50 * serial, 100))

    for _ in range(10):
        world.complete()
        plan = world.plan()
        assert serials(world, plan)[0] == 1
        assert sum(lengths(plan)) <= 16

    world.run()
    assert world.said[1] == world.answer(steady)


def test_two_prompts_of_three_chunks_in_the_same_steps_sample_at_their_last_only() -> None:
    """Field case 103."""
    limits = make_limits(max_num_batched_tokens=32, long_prefill_token_threshold=16)
    world = World(limits=limits, num_blocks=64)
    requests = [world.request(serial, words(70 * serial, 48), max_tokens=2) for serial in (1, 2)]
    samples = []
    for _ in range(4):
        plan = world.plan()
        assert plan is not None
        samples.append(plan.samples.tolist())
        world.complete()

    assert samples == [[False, False], [False, False], [True, True], [True, True]]
    for request in requests:
        assert world.said[request.serial] == world.answer(request)


def test_no_step_has_more_rows_than_may_run() -> None:
    world = World(limits=make_limits(max_num_seqs=3))
    for serial in range(7):
        world.request(serial, words(20 * serial, 5), max_tokens=3)

    plan = world.plan()

    assert serials(world, plan) == [0, 1, 2]
    world.run()
    assert list(world.ended) == list(range(7))


# Steps in flight


def test_a_second_prompt_starts_while_the_first_one_s_step_is_in_flight() -> None:
    world = World()
    world.request(1, words(0, 6), max_tokens=5)
    world.plan()
    world.request(2, words(50, 7), max_tokens=5)

    mixed = world.plan()

    assert serials(world, mixed) == [1, 2]
    assert lengths(mixed) == [1, 7]


def test_tokens_in_flight_reach_a_sequence_that_gave_way_meanwhile() -> None:
    world = World(limits=make_limits(max_num_seqs=1, steps_in_flight=4))
    request = world.request(1, words(0, 6), max_tokens=20, priority=5)
    world.plan()
    world.plan()
    world.request(2, words(90, 6), max_tokens=9, priority=1)
    world.plan()
    assert world.preemptions == 1
    assert world.said[1] == []

    world.complete()
    world.complete()

    assert world.said[1] == world.answer(request)[:2]
    world.run()
    assert world.said[1] == world.answer(request)


def test_a_resumed_sequence_brings_all_it_has_said_to_the_device() -> None:
    """Nothing after it is sampled from less than its whole history."""
    world = World(limits=make_limits(max_num_seqs=1, prefix_caching=False))
    first = world.request(1, words(0, 6), max_tokens=12, priority=1)
    for _ in range(4):
        world.plan()
        world.complete()
    world.request(2, words(50, 6), max_tokens=2)
    states = []
    for _ in range(12):
        plan = world.plan()
        if plan is None:
            world.complete()
        else:
            states += [row.token_ids.tolist() for row in plan.new_rows]

    assert states[-1][:6] == words(0, 6)
    assert states[-1][6:] == world.answer(first)[: len(states[-1]) - 6]
    assert len(states[-1]) > 6
    world.run()
    assert world.said[1] == world.answer(first)


def test_an_abort_before_the_last_token_is_known_is_an_abort() -> None:
    world = World()
    world.request(1, words(0, 6), max_tokens=1)
    world.plan()

    world.batcher.abort(1)
    world.complete()

    assert world.ended[1].reason is FinishReason.ABORT
    assert world.said[1] == []


def test_what_no_step_mentions_is_free_at_once() -> None:
    world = World()
    world.request(1, words(0, 20), max_tokens=5)
    world.plan()
    world.complete()

    world.batcher.abort(1)
    world.plan()

    assert world.pool.num_free == world.num_blocks


def test_a_cancellation_storm_leaves_nothing_behind() -> None:
    world = World(limits=make_limits(max_num_seqs=8), num_blocks=40)
    for serial in range(100):
        world.request(serial, words(serial, 5 + serial % 20), max_tokens=30)
    for _ in range(6):
        world.plan()
        world.complete()
    world.plan()
    world.plan()

    for serial in range(100):
        world.batcher.abort(serial)
    world.run()
    world.plan()

    assert len(world.ended) == 100
    world.assert_is_empty()


# Importance


def test_equals_run_in_the_order_they_came() -> None:
    world = World(limits=make_limits(max_num_seqs=1))
    for serial in (3, 5, 8):
        world.request(serial, words(serial, 4), max_tokens=2, priority=1)

    world.run()

    assert list(world.ended) == [3, 5, 8]


def test_classes_come_before_arrival_however_they_are_mixed() -> None:
    world = World(limits=make_limits(max_num_seqs=1))
    for serial, priority in enumerate([2, 0, 1, 0, 2, 1]):
        world.request(serial, words(20 * serial, 4), max_tokens=2, priority=priority)

    world.run()

    assert list(world.ended) == [1, 3, 2, 5, 0, 4]


def test_a_more_important_request_takes_blocks_from_the_last_of_the_lesser_classes() -> None:
    world = World(limits=make_limits(max_model_len=64), num_blocks=12)
    requests = [
        world.request(serial, words(30 * serial, 14), max_tokens=10, priority=priority)
        for serial, priority in ((1, 3), (2, 5), (3, 5))
    ]
    world.plan()
    world.complete()
    urgent = world.request(9, words(150, 14), max_tokens=4)
    world.plan()

    [preempted] = [p.serial for report in world.reports for p in report.preempted]
    assert preempted == 3
    world.run()
    for request in (*requests, urgent):
        assert world.said[request.serial] == world.answer(request)


def test_nobody_gives_way_while_there_is_room() -> None:
    world = World(limits=make_limits(max_num_seqs=4), num_blocks=64)
    for serial in range(3):
        world.request(serial, words(30 * serial, 14), max_tokens=10, priority=5)
    world.plan()
    world.request(9, words(150, 14), max_tokens=4)

    world.run()

    assert world.preemptions == 0


def test_an_equal_request_waits_for_blocks_and_takes_none() -> None:
    world = World(limits=make_limits(max_model_len=64), num_blocks=12)
    for serial in range(4):
        world.request(serial, words(30 * serial, 20), max_tokens=4)

    world.plan()

    assert world.batcher.num_running == 2
    assert world.preemptions == 0
    world.run()
    assert list(world.ended) == [0, 1, 2, 3]


def test_who_was_passed_keeps_its_place_before_all_that_came_later() -> None:
    world = World(limits=make_limits(max_num_seqs=4), num_blocks=20)
    world.request(0, words(0, 40), max_tokens=20)
    world.plan()
    big = world.request(1, words(50, 60), max_tokens=4)
    for serial in range(2, 8):
        world.request(serial, words(20 * serial, 6), max_tokens=30)
    while 1 not in {a.serial for report in world.reports for a in report.admitted}:
        if world.plan() is None:
            world.complete()

    waiting = [sequence.request.serial for sequence in world.batcher._roster.waiting]
    assert all(serial > 1 for serial in waiting)
    world.run()
    assert world.said[1] == world.answer(big)
