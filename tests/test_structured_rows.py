"""Structured rows (rule 23): masks that come with a plan, and masks that held rows wait for."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stepahead.actors.actor import Mailbox
from stepahead.actors.cores import CoreSetup, build_cores
from stepahead.actors.executor import Executor, ExecutorMessage
from stepahead.actors.journal import Journal
from stepahead.actors.recording import read_recording, replay
from stepahead.actors.recording.file import RecordingFile
from stepahead.actors.recording.format import Header
from stepahead.actors.recording.recorder import Recorder
from stepahead.actors.scheduler import SchedulerMessage
from stepahead.actors.simulation.clock import EventClock
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.messages import (
    NO_INTS,
    NO_LONGS,
    Abort,
    Ended,
    FinishReason,
    Generate,
    GrammarReady,
    Pause,
    Resume,
    RowMasks,
    SampleRows,
    StepDone,
    StepFailed,
    TokensReady,
    frozen_longs,
)

from .batching import World, make_facts, make_limits, make_request
from .device_driver import make_plan, make_row
from .engines import STEP
from .grammars import ScriptedGrammar, ScriptedGrammars, structured_answer


def make_world(**options: int) -> World:
    return World(limits=make_limits(**options))  # type: ignore[arg-type]  # passed on


# The Batcher


def test_a_request_waits_for_its_grammar_and_others_pass_it() -> None:
    world = make_world()
    structured = world.request(0, [5, 6], max_tokens=8, grammar="open 0")
    world.request(1, [7, 8], max_tokens=2)

    world.run()
    assert list(world.ended) == [1]
    world.compile(0)
    world.run()

    assert world.said[0] == world.answer(structured)
    world.assert_is_empty()


def test_a_grammar_that_cannot_be_compiled_ends_its_request_and_no_other() -> None:
    world = make_world()
    world.request(0, [5, 6], grammar="open 0")
    world.request(1, [7, 8])

    world.compile(0, "no such rule")
    world.run()

    assert world.ended[0].reason is FinishReason.ERROR
    assert world.ended[0].error == "no such rule"
    assert world.ended[1].reason is FinishReason.LENGTH


def test_an_abort_or_a_deadline_ends_a_request_whose_grammar_is_not_ready() -> None:
    world = make_world()
    world.request(0, [5, 6], grammar="open 0")
    world.request(1, [5, 6], grammar="open 0", deadline_ns=1)

    world.batcher.abort(0)
    world.pass_time()
    world.compile(0)
    world.compile(1)

    assert world.ended[0].reason is FinishReason.ABORT
    assert world.ended[1].reason is FinishReason.TIMEOUT
    assert world.plan() is None


def test_the_mask_comes_with_the_plan_where_the_last_token_is_confirmed() -> None:
    world = make_world()
    world.request(0, [5, 6], max_tokens=8, grammar="open 0")
    world.compile(0)

    plan = world.plan()

    assert plan is not None
    assert plan.masks is not None
    assert (plan.masks.rows.tolist(), plan.masks.held.tolist()) == ([0], [])


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_row_is_held_until_the_step_before_it_is_applied(is_paused: bool) -> None:
    world = make_world()
    world.request(0, [5, 6], max_tokens=8, grammar="open 0")
    world.compile(0)
    world.plan()
    held = world.plan()
    assert held is not None
    assert held.masks is not None
    assert (held.masks.rows.tolist(), held.masks.held.tolist()) == ([], [0])
    assert world.batcher.take_masks() == []

    world.batcher.is_paused = is_paused
    world.batcher.complete(world.device.run(world.plans.popleft()))
    due = world.batcher.take_masks()

    assert [(masks.step, masks.rows.tolist(), masks.void.tolist()) for masks in due] == [
        (held.step, [0], [])
    ]


def test_a_held_row_whose_sequence_has_ended_gets_a_void_mask() -> None:
    world = make_world()
    world.request(0, [5, 6], max_tokens=8, grammar="open 0")
    world.compile(0)
    world.plan()
    world.plan()

    world.batcher.abort(0)
    due = world.batcher.take_masks()

    assert [(masks.rows.tolist(), masks.void.tolist()) for masks in due] == [([], [0])]
    assert world.batcher.take_masks() == []


def test_a_device_that_cannot_hold_rows_gets_them_when_their_last_token_is_known() -> None:
    world = make_world(holds_sampling=False)
    request = world.request(0, [5, 6], max_tokens=8, grammar="open 0")
    world.compile(0)
    world.plan()

    assert world.plan() is None
    world.run()

    assert world.held == 0
    assert world.said[0] == world.answer(request)


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3, 4])
@pytest.mark.parametrize("text", ["over 5", "open 0", "refuse 5", "dead 5", "jump 1", "jump 3"])
def test_a_grammar_decides_how_its_request_ends(text: str, steps_in_flight: int) -> None:
    world = make_world(steps_in_flight=steps_in_flight)
    request = world.request(0, [5, 6], max_tokens=8, grammar=text)
    other = world.request(1, [7, 8], max_tokens=9)
    world.compile(0)

    world.run()

    said, reason = structured_answer([(0, world.oracle)], request)
    assert (world.said[0], world.ended[0].reason) == (said, reason)
    assert world.said[1] == world.answer(other)
    world.assert_is_empty()


@pytest.mark.parametrize("min_tokens", [0, 3, 8])
def test_min_tokens_and_a_grammar_hold_together(min_tokens: int) -> None:
    world = World(oracle=Oracle(eos_every=3))
    for serial in range(6):
        world.request(serial, [serial, 6], max_tokens=12, min_tokens=min_tokens, grammar="open 0")
        world.compile(serial)

    world.run()

    for request in world.requests.values():
        assert world.said[request.serial] == world.answer(request)


def test_a_turn_that_has_looked_at_enough_leaves_the_other_masks_to_the_next() -> None:
    world = make_world()
    for serial in range(7):
        world.request(serial, [serial, 6], max_tokens=8, grammar="dear 3")
        world.compile(serial)
    world.plan()
    world.plan()
    world.pass_time()

    world.batcher.complete(world.device.run(world.plans.popleft()))
    told = [world.batcher.take_masks()[0].rows.tolist()]
    while world.batcher.next_deadline_ns == 0:
        world.batcher.pass_time(world.now)
        told.append(world.batcher.take_masks()[0].rows.tolist())

    assert told == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("is_held", [True, False])
def test_what_is_said_does_not_depend_on_how_much_a_turn_looks_at(is_held: bool) -> None:
    world = make_world(holds_sampling=is_held)
    for serial in range(6):
        world.request(serial, [serial, 6], max_tokens=9, grammar="dear 1")
        world.compile(serial)

    world.run()

    for request in world.requests.values():
        assert world.said[request.serial] == world.answer(request)
    world.assert_is_empty()


def test_a_plan_without_grammars_says_nothing_of_masks() -> None:
    world = make_world()
    world.request(0, [5, 6])

    plan = world.plan()

    assert plan is not None
    assert plan.masks is None
    assert world.batcher.take_masks() == []


def test_an_engine_without_grammars_ends_such_a_request_with_an_error() -> None:
    world = make_world()
    world.batcher._structured._grammars = None
    world.request(0, [5, 6], grammar="open 0")

    world.compile(0)

    assert world.ended[0].error == "this engine has no grammars"


# The device


def test_the_device_waits_with_a_step_and_those_behind_it_until_a_held_row_has_its_mask() -> None:
    clock = EventClock()
    device = SimulatedDevice(
        make_facts(), 4, lambda seconds, call: clock.call_at(clock.now + seconds, call)
    )
    results: list[StepDone | StepFailed] = []
    masks = RowMasks(NO_LONGS, NO_INTS, frozen_longs([0]))
    first = make_plan(1, [(0, 0, 2, True)], [make_row(0, [5, 6], [0])])
    device.launch(replace(first, masks=masks), results.append)
    device.launch(make_plan(2, [(0, 2, 1, True)]), results.append)
    clock.run()
    assert results == []

    words = ScriptedGrammar("open 0").mask()
    device.sample(SampleRows(1, frozen_longs([0]), words, NO_LONGS))
    clock.run()

    assert [result.step for result in results] == [1, 2]
    assert isinstance(results[0], StepDone)
    request = make_request(0, [5, 6], max_tokens=1, grammar="open 0")
    assert results[0].token_ids.tolist() == structured_answer([(0, Oracle())], request)[0]


def test_masks_for_a_step_that_was_answered_are_passed_over() -> None:
    device = SimulatedDevice(make_facts(), 4, lambda _, call: call())
    plan = make_plan(1, [(0, 0, 2, True)], [make_row(0, [5, 6], [0])])
    device.skip(plan)

    device.sample(SampleRows(1, NO_LONGS, NO_INTS, frozen_longs([0])))

    assert device._masks._masks == {}


# Scheduler, Executor and device in one clock


class Desk:
    """The cores, the Executor and the simulated device; every turn is checked."""

    def __init__(self, seed: int, path: Path | None = None) -> None:
        self.random = random.Random(seed)
        self.dear = f"dear {1 + seed % 3}"
        limits = make_limits(
            steps_in_flight=1 + seed % 4, num_blocks=self.random.choice([24, 64]), max_model_len=64
        )
        setup = CoreSetup(limits=limits, watermark=0, is_checked=True)
        self.clock = clock = EventClock()
        self.journal = journal = Journal(lambda: int(clock.now * 1e9))
        self.oracle = Oracle(eos_every=30)
        header = Header(setup=setup, model="oracle", device="simulated")
        file = None if path is None else RecordingFile(path, header)
        self.recorder = Recorder(header, journal, file=file)
        device = SimulatedDevice(
            make_facts(limits.num_blocks, 64),
            limits.num_slots,
            lambda seconds, call: clock.call_at(clock.now + seconds, call),
            oracle=self.oracle,
            step_time=STEP,
        )
        self.cores = build_cores(
            setup,
            journal,
            executor=lambda plan: executor.take(plan),
            masks=lambda masks: executor.take(masks),
            detokenizer=self.hear,
            call_at=lambda t_ns, call: clock.call_at(t_ns / 1e9, lambda: self.ring(call)),
            grammars=ScriptedGrammars(),
        )
        to_executor: Mailbox[ExecutorMessage] = Mailbox("executor", journal)
        executor = Executor(
            to_executor, journal, device, scheduler=self.post, control=lambda _: None
        )
        self.said: dict[int, list[int]] = {}
        self.ended: dict[int, Ended] = {}

    def post(self, message: SchedulerMessage) -> None:
        self.cores.to_scheduler.post(message)
        self.clock.call_at(self.clock.now, self.take_turn)

    def post_at(self, time: float, message: SchedulerMessage) -> None:
        self.clock.call_at(time, lambda: self.post(message))

    def ring(self, call: Callable[[], None]) -> None:
        call()
        self.take_turn()

    def take_turn(self) -> None:
        turn = self.cores.to_scheduler.drain()
        if turn is not None:
            self.cores.scheduler.react(turn)

    def hear(self, report: TokensReady) -> None:
        self.journal.note("detokenizer", report)
        for serial, token_id in zip(
            report.serials.tolist(), report.token_ids.tolist(), strict=True
        ):
            self.said[serial].append(token_id)
        self.ended.update({ended.serial: ended for ended in report.ended})

    def live(self) -> list[Generate]:
        """Requests of both kinds come; some are given up; the engine pauses and goes on."""
        pick = self.random.choice
        requests = []
        for serial in range(24):
            grammar = pick(
                [None, "open 0", "over 9", "over 20", "refuse 4", "dead 6", "jump 2", self.dear]
            )
            request = make_request(
                serial,
                [pick([5, 6]), *range(self.random.randrange(20))],
                max_tokens=self.random.randint(1, 30),
                priority=pick([0, 0, 1]),
                grammar=grammar,
            )
            requests.append(request)
            self.said[serial] = []
            arrival = self.random.random()
            self.post_at(arrival, request)
            if grammar is not None:
                self.post_at(arrival + pick([0.0, 0.005, 0.1]), GrammarReady(serial))
            if self.random.random() < 0.2:
                self.post_at(arrival + self.random.random() * 0.3, Abort(serial))
        for start in (0.2, 0.5):
            self.post_at(start, Pause())
            self.post_at(start + 0.05, Resume())
        self.clock.run()
        return requests


@pytest.mark.parametrize("seed", range(16))
def test_no_step_waits_for_ever_and_everybody_says_what_their_grammar_allows(seed: int) -> None:
    desk = Desk(seed)

    for request in desk.live():
        ended = desk.ended[request.serial]
        if request.grammar is None:
            limit, stops = request.max_tokens, request.stop_token_ids
            said, reason = desk.oracle.answer(request.prompt.tolist(), limit, stops=stops), None
        else:
            said, reason = structured_answer([(0, desk.oracle)], request)
        if ended.reason is FinishReason.ABORT:
            assert desk.said[request.serial] == said[: len(desk.said[request.serial])]
        else:
            assert desk.said[request.serial] == said
            assert reason in (None, ended.reason)


def test_a_recorded_run_under_grammars_replays_with_the_same_grammars(tmp_path: Path) -> None:
    desk = Desk(1, tmp_path / "structured")
    assert desk.recorder is not None
    desk.live()
    desk.recorder.save()
    recording = read_recording(tmp_path / "structured")

    replayed = replay(recording, grammars=ScriptedGrammars())

    assert replayed.difference is None
    assert replayed.steps > 20
    assert replay(recording).difference is not None
