"""Speculative rows (rule 22): what drafts may do, and what they may never do."""

import pytest

from stepahead import Result, SamplingParams
from stepahead.actors.batching import BatchLimits
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.verify import accept, sampled_positions
from stepahead.messages import Drafts, FinishReason, StepPlan, frozen_ints, frozen_longs

from .batching import BLOCK, World, make_limits
from .device_driver import make_plan
from .drafters import ScriptedDrafter
from .engines import is_empty, make_engine, settle


def make_world(
    kind: str,
    *,
    most: int = 4,
    oracle: Oracle | None = None,
    limits: BatchLimits | None = None,
    num_blocks: int = 64,
) -> World:
    oracle, limits = oracle or Oracle(), limits or make_limits()
    drafter = ScriptedDrafter(oracle, (kind,), most=most)
    return World(limits=limits, num_blocks=num_blocks, oracle=oracle, drafter=drafter)


def plan_decode(world: World) -> StepPlan:
    """Run the step in flight and plan the next one."""
    world.complete()
    plan = world.plan()
    assert plan is not None
    return plan


@pytest.mark.parametrize("kind", ["right", "wrong", "partly", "random"])
def test_drafts_change_how_fast_a_sequence_advances_and_nothing_else(kind: str) -> None:
    world = make_world(kind, oracle=Oracle(eos_every=40))
    requests = [world.request(serial, [serial, 5, 6], max_tokens=50) for serial in range(4)]

    world.run()

    for request in requests:
        assert world.said[request.serial] == world.answer(request)
    assert (world.accepted > 0) == (kind != "wrong")
    world.assert_is_empty()


def test_a_right_guess_confirms_all_its_drafts_and_one_token_more() -> None:
    world = make_world("right")
    request = world.request(0, [5, 6, 7], max_tokens=20)
    world.plan()
    plan = plan_decode(world)
    assert plan.drafts is not None
    assert (plan.starts.tolist(), plan.lengths.tolist()) == ([3], [5])

    world.complete()

    assert world.said[0] == world.answer(request)[:6]


def test_a_sequence_whose_drafts_are_in_flight_is_not_planned() -> None:
    world = make_world("right", limits=make_limits(steps_in_flight=4))
    world.request(0, [5, 6, 7], max_tokens=20)
    world.plan()
    assert world.plan() is None  # the first token is not known yet

    plan_decode(world)

    assert world.plan() is None


def test_drafts_and_the_token_behind_them_stay_within_max_tokens() -> None:
    world = make_world("right")
    world.request(0, [5, 6, 7], max_tokens=4)
    world.plan()

    plan = plan_decode(world)

    assert plan.drafts is not None
    assert plan.drafts.counts.tolist() == [2]
    world.run()
    assert world.ended[0].reason is FinishReason.LENGTH
    assert len(world.said[0]) == 4


def test_what_was_accepted_behind_a_stop_id_is_dropped() -> None:
    answer = Oracle().answer([5, 6, 7], 20)
    world = make_world("right", most=6)
    request = world.request(0, [5, 6, 7], max_tokens=20, stop_token_ids=(answer[3],))

    world.run()

    assert world.said[0] == answer[:4] == world.answer(request)
    assert world.ended[0].reason is FinishReason.STOP
    assert world.ended[0].stop_token_id == answer[3]


@pytest.mark.parametrize("min_tokens", [2, 4, 5, 9])
def test_min_tokens_holds_at_every_position_of_a_row(min_tokens: int) -> None:
    oracle = Oracle(eos_every=4)
    said = []
    for kind in ("none", "right", "random"):
        world = make_world(kind, oracle=oracle, most=6)
        for serial in range(8):
            world.request(serial, [serial, 6, 7], max_tokens=30, min_tokens=min_tokens)
        world.run()
        said.append(world.said)

    assert said[0] == said[1] == said[2]
    assert all(len(tokens) >= min_tokens for tokens in said[0].values())


def test_prefill_chunks_carry_no_drafts() -> None:
    world = make_world("right", limits=make_limits(max_num_batched_tokens=8))
    world.request(0, range(20), max_tokens=10)

    for chunk in (8, 8, 4):
        plan = world.plan()

        assert plan is not None
        assert (plan.num_tokens, plan.drafts) == (chunk, None)
        world.complete()


def test_drafts_share_what_is_left_of_the_token_budget() -> None:
    world = make_world("right", limits=make_limits(max_num_batched_tokens=8))
    for serial in range(3):
        world.request(serial, [serial], max_tokens=20)
    world.plan()

    plan = plan_decode(world)

    assert plan.drafts is not None
    assert plan.drafts.counts.tolist() == [3, 1, 1]
    assert plan.num_tokens == 8


def test_a_draft_gets_no_new_block_while_somebody_waits() -> None:
    world = make_world("right", most=6, limits=make_limits(max_num_seqs=1))
    world.request(0, [5, 6], max_tokens=20)
    world.request(1, [7, 8], max_tokens=20)
    world.plan()

    plan = plan_decode(world)

    assert plan.drafts is not None
    assert plan.drafts.counts.tolist() == [1]  # to the end of the block it has
    assert not len(plan.block_ids)


def test_drafts_preempt_nobody() -> None:
    needs = [3, 3]  # blocks that each of two sequences comes to need
    drafted = make_world("right", most=6, num_blocks=sum(needs))
    for serial in range(2):
        drafted.request(serial, [serial, 5, 6], max_tokens=10)

    drafted.run()

    assert drafted.preemptions == 0
    assert drafted.accepted > 0


def test_a_late_draft_row_of_a_preempted_sequence_counts_with_all_that_was_accepted() -> None:
    world = make_world("right", limits=make_limits(max_num_seqs=1))
    late = world.request(0, [5, 6, 7], max_tokens=20, priority=1)
    world.plan()
    plan_decode(world)
    world.request(1, [8, 9], max_tokens=1)
    world.plan()
    assert world.preemptions == 1

    world.complete()

    assert world.said[0] == world.answer(late)[:6]
    world.run()
    assert world.said[0] == world.answer(late)


def test_an_abort_while_drafts_are_in_flight_gives_every_block_back() -> None:
    world = make_world("partly")
    world.request(0, [5, 6, 7], max_tokens=20)
    world.plan()
    plan_decode(world)

    world.batcher.abort(0)
    world.run()

    assert len(world.said[0]) == 1
    world.assert_is_empty()


def test_a_block_with_a_rejected_draft_is_not_found_by_anybody() -> None:
    world = make_world("wrong", most=BLOCK)
    first = world.request(0, [5, 6], max_tokens=20)
    world.run()

    world.request(1, [5, 6, *world.answer(first)[:10]], max_tokens=3)
    world.plan()

    admitted = [event for report in world.reports for event in report.admitted]
    assert admitted[-1].cached_tokens == 8  # of 12, the last of which must be computed
    world.run()
    assert world.said[1] == world.answer(world.requests[1])


def test_a_plan_without_drafts_says_nothing_of_them() -> None:
    world = make_world("none")
    world.request(0, [5, 6, 7], max_tokens=4)

    plan = world.plan()

    assert plan is not None
    assert plan.drafts is None
    assert world.device.run(plan).counts is None


# Verification


def drafted_plan() -> StepPlan:
    """Rows: a chunk, a decode, two drafts, one draft."""
    rows = [(0, 0, 4, False), (1, 7, 1, True), (2, 5, 3, True), (3, 2, 2, True)]
    plan = make_plan(1, rows)
    drafts = Drafts(frozen_longs([2, 3]), frozen_ints([2, 1]), frozen_ints([11, 12, 21]))
    fields = {name: getattr(plan, name) for name in StepPlan.__dataclass_fields__}
    return StepPlan(**(fields | {"drafts": drafts}))


def test_a_row_samples_at_its_end_and_at_each_of_its_drafts() -> None:
    rows, positions = sampled_positions(drafted_plan())

    assert rows.tolist() == [1, 2, 2, 2, 3, 3]
    assert positions.tolist() == [8, 6, 7, 8, 3, 4]


@pytest.mark.parametrize(
    ("said", "kept", "counts"),
    [
        ([1, 11, 12, 13, 21, 22], [1, 11, 12, 13, 21, 22], [1, 3, 2]),
        ([1, 11, 10, 13, 20, 22], [1, 11, 10, 20], [1, 2, 1]),
        ([1, 10, 12, 13, 20, 22], [1, 10, 20], None),
        ([1, 11, -1, 13, 21, -1], [1, -1, -1], None),
        ([-1, 11, 10, -1, 21, 22], [-1, 11, 10, 21, 22], [1, 2, 2]),
    ],
)
def test_samples_count_up_to_the_first_that_was_not_drafted(
    said: list[int], kept: list[int], counts: list[int] | None
) -> None:
    token_ids, per_row = accept(drafted_plan(), frozen_ints(said))

    assert token_ids.tolist() == kept
    assert (None if per_row is None else per_row.tolist()) == counts


# The whole engine


def test_a_stop_string_within_accepted_tokens_ends_the_text_and_the_ids_there() -> None:
    answer = ToyTokenizer().decode(Oracle().answer(ToyTokenizer().encode("hello"), 40))
    drafter = ScriptedDrafter(Oracle(), ("right",), most=8)

    async def scenario() -> Result:
        async with make_engine(drafter=drafter) as engine:
            result = await engine.generate(
                "hello", SamplingParams(max_tokens=40, stop=(answer[12:14],))
            )
            await settle(engine, steps=3)
            assert is_empty(engine)
            return result

    result = run_virtual(scenario())

    assert result.text == answer[:12]
    assert len(result.token_ids) == result.usage.completion_tokens == 14
    assert result.finish_reason is FinishReason.STOP
