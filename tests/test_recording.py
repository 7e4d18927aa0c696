"""Recordings: what was said is kept, damage is noticed, and a replay says the same or shows where
it does not."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepahead import ConfigError, EngineDead, SamplingParams
from stepahead.actors.batching.admission import Admission
from stepahead.actors.batching.ledger import Ledger
from stepahead.actors.journal import Envelope, Turn
from stepahead.actors.journal import Heard as HeardTurn
from stepahead.actors.recording import Recording, read_recording, replay
from stepahead.actors.recording.format import MAGIC, VERSION
from stepahead.actors.recording.reading import recording_of
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.device import StepAddress
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.kvpool import BlockPool
from stepahead.messages import (
    BlocksReserved,
    DecodeError,
    Ints,
    Longs,
    Message,
    ResetPrefixCache,
    StepDone,
    StepPlan,
    TokensReady,
    frozen_ints,
    same,
)
from stepahead.messages.codec import pack, unpack
from stepahead.messages.frames import FrameReader, sealed

from .drafters import ScriptedDrafter
from .engines import make_engine
from .eventful import call_in_many_ways

Heard = list[tuple[str, Turn[Message]]]


def record(path: Path, **options: Any) -> Heard:
    """Write a recording of an eventful run; returns what a sink heard of it."""
    heard: Heard = []

    async def run() -> None:
        oracle = Oracle(eos_every=200)
        options.setdefault("num_blocks", 24)
        async with make_engine(max_model_len=64, oracle=oracle, record=path, **options) as engine:
            engine._started.journal.attach(lambda actor, turn: heard.append((actor, turn)))
            await call_in_many_ways(engine)

    run_virtual(run())
    return heard


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Heard]:
    path = tmp_path_factory.mktemp("recordings") / "eventful"
    return path, record(path)


# What is written


def test_a_recording_holds_every_message_with_its_number_times_actor_and_turn(
    recorded: tuple[Path, Heard],
) -> None:
    path, heard = recorded

    read = read_recording(path)

    assert [(t.actor, t.turn.number, t.turn.t_ns) for t in read.turns] == [
        (actor, turn.number, turn.t_ns) for actor, turn in heard
    ]
    for recorded_turn, (_, turn) in zip(read.turns, heard, strict=True):
        for left, right in zip(recorded_turn.turn.envelopes, turn.envelopes, strict=True):
            assert (left.seq, left.t_ns) == (right.seq, right.t_ns)
            assert same(left.message, right.message)
    assert read.end is not None
    assert read.end.failure is None
    assert read.num_damaged == 0


def test_what_was_recorded_before_there_was_a_limit_replays_without_it(
    recorded: tuple[Path, Heard],
) -> None:
    data = recorded[0].read_bytes()
    reader = FrameReader(data, len(MAGIC))
    reader.next()

    read = recording_of(MAGIC + header_without(data, 1) + data[reader.place :])

    assert read.header == recording_of(data).header
    assert replay(read).difference is None


@pytest.mark.parametrize("missing", [2, 16])
def test_a_limit_that_was_always_there_is_missed(
    missing: int, recorded: tuple[Path, Heard]
) -> None:
    data = recorded[0].read_bytes()

    with pytest.raises(DecodeError, match="BatchLimits has 16 fields"):
        recording_of(MAGIC + header_without(data, missing))


def header_without(data: bytes, missing: int) -> bytes:
    """A recording's header that lacks the last limits."""
    version, [[limits, *setup], *others] = unpack(recording_of(data).header.packed())
    return sealed(pack([version, [[limits[:-missing], *setup], *others]]))


def test_a_run_with_drafts_says_the_same_with_the_same_drafter_only(tmp_path: Path) -> None:
    drafter = ScriptedDrafter(Oracle(eos_every=200), ("right", "partly", "wrong"))
    record(tmp_path / "drafted", drafter=drafter)
    recording = read_recording(tmp_path / "drafted")

    assert replay(recording, drafter=drafter).difference is None
    assert replay(recording).difference is not None


def test_two_runs_of_the_same_give_the_same_bytes(
    recorded: tuple[Path, Heard], tmp_path: Path
) -> None:
    record(tmp_path / "again")

    assert (tmp_path / "again").read_bytes() == recorded[0].read_bytes()


def test_a_path_that_cannot_be_written_is_refused_before_the_engine_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot record to"):
        run_virtual(_start_and_close(tmp_path / "missing" / "recording"))


async def _start_and_close(path: Path) -> None:
    async with make_engine(record=path):
        pass


def test_a_disk_that_fails_on_the_way_ends_the_recording_and_not_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "recording")
    reader = os.open(tmp_path / "recording", os.O_RDONLY | os.O_NONBLOCK)

    async def run() -> str:
        async with make_engine(record=tmp_path / "recording") as engine:
            os.close(reader)
            return (await engine.generate("x", SamplingParams(max_tokens=3))).text

    assert len(run_virtual(run())) == 3
    assert "cannot go on with the recording" in caplog.text
    assert "Broken pipe" in caplog.text


# What is read


@pytest.mark.parametrize(
    ("params", "request_id"),
    [
        (SamplingParams(max_tokens=3), "half \ud800 of a pair"),
        (SamplingParams(max_tokens=3, stop=("\udfff",)), "r"),
        (SamplingParams(max_tokens=3, temperature=10**30), "r"),
    ],
)
def test_whatever_a_request_may_say_is_recorded_and_replays(
    params: SamplingParams, request_id: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd"

    async def run() -> None:
        async with make_engine(record=path) as engine:
            await engine.generate("hello", params, request_id=request_id)

    run_virtual(run())

    read = read_recording(path)
    assert read.end is not None
    assert replay(read).difference is None


def test_a_cut_recording_is_read_up_to_the_cut_wherever_it_is(
    recorded: tuple[Path, Heard],
) -> None:
    data = recorded[0].read_bytes()
    whole = recording_of(data)
    rng = random.Random(0)
    for _ in range(60):
        cut = rng.randrange(len(data))
        try:
            read = recording_of(data[:cut])
        except DecodeError:
            assert cut < 300, "only what lacks its header is refused"
            continue
        assert read.end is None
        _assert_begins_like(read, whole)


def test_a_changed_byte_ends_what_is_read_or_is_refused(recorded: tuple[Path, Heard]) -> None:
    data = recorded[0].read_bytes()
    whole = recording_of(data)
    rng = random.Random(1)
    for _ in range(60):
        damaged = bytearray(data)
        place = rng.randrange(len(data))
        damaged[place] ^= 1 << rng.randrange(8)
        try:
            read = recording_of(bytes(damaged))
        except DecodeError:
            assert place < 300, "only a damaged header is refused"
            continue
        assert read.num_damaged > 0
        _assert_begins_like(read, whole)


def _assert_begins_like(read: Recording, whole: Recording) -> None:
    for mine, theirs in zip(read.turns, whole.turns, strict=False):
        assert mine.turn.number == theirs.turn.number
        for left, right in zip(mine.turn.envelopes, theirs.turn.envelopes, strict=False):
            assert same(left, right)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not a recording"),
        (b"a story", "not a recording"),
        (MAGIC, "damaged where it begins"),
        (MAGIC + sealed(pack([VERSION + 1, []])), f"of version {VERSION + 1}"),
        (MAGIC + sealed(pack([VERSION, []])), "Header has 7 fields"),
        (MAGIC + sealed(pack("header")), "no header"),
        (MAGIC + sealed(b"\xc1"), "not msgpack"),
    ],
)
def test_what_is_no_recording_is_refused_in_a_sentence(data: bytes, fault: str) -> None:
    with pytest.raises(DecodeError, match=fault):
        recording_of(data)


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (["no", "message"], "not a message with"),
        ([1, 2, "executor", 4, 5, "Nobody", []], "'Nobody' is not a type"),
        ([1, 2, 3, 4, 5, "Abort", [1]], "3 where a str belongs"),
        ([1, 2, "executor", True, 5, "Abort", [1]], "True where a int belongs"),
    ],
)
def test_an_undamaged_frame_that_is_no_message_is_refused(
    payload: list[Any], fault: str, recorded: tuple[Path, Heard]
) -> None:
    data = recorded[0].read_bytes()

    with pytest.raises(DecodeError, match=fault):
        recording_of(data[: _header_end(data)] + sealed(pack(payload)))


def _header_end(data: bytes) -> int:
    return len(MAGIC) + 8 + int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")


# Replaying


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_replay_says_the_same_bit_for_bit(
    steps_in_flight: int, prefix_caching: bool, tmp_path: Path
) -> None:
    path = tmp_path / "recording"
    heard = record(path, steps_in_flight=steps_in_flight, prefix_caching=prefix_caching, ageing=0.1)

    replayed = replay(read_recording(path))

    said = [e.message for _, turn in heard for e in turn.envelopes]
    assert replayed.difference is None
    assert replayed.failure is None
    assert replayed.steps == sum(isinstance(message, StepPlan) for message in said)
    assert replayed.messages > replayed.steps * 2


def test_what_is_left_of_a_cut_recording_replays(recorded: tuple[Path, Heard]) -> None:
    data = recorded[0].read_bytes()
    rng = random.Random(2)
    for _ in range(40):
        read = recording_of(data[: rng.randrange(300, len(data))])

        assert replay(read).difference is None


def with_message(
    recording: Recording, kind: type, change: Callable[[Any], Message | None], place: int = 5
) -> Recording:
    """The recording with one message changed, or left out."""
    turns: list[HeardTurn] = []
    for recorded_turn in recording.turns:
        envelopes: list[Envelope[Message]] = []
        for envelope in recorded_turn.turn.envelopes:
            place -= isinstance(envelope.message, kind)
            is_it = isinstance(envelope.message, kind) and place == 0
            changed = change(envelope.message) if is_it else envelope.message
            if changed is not None:
                envelopes.append(envelope._replace(message=changed))
        if envelopes:
            turn = recorded_turn.turn
            turns.append(HeardTurn(recorded_turn.actor, turn._replace(envelopes=envelopes)))
    assert place <= 0
    return replace(recording, turns=tuple(turns))


def test_a_plan_that_differs_is_shown_field_by_field(recorded: tuple[Path, Heard]) -> None:
    def change(plan: StepPlan) -> StepPlan:
        return replace(plan, starts=frozen_ints(plan.starts + 1))

    other = with_message(read_recording(recorded[0]), StepPlan, change)

    difference = replay(other).difference

    assert difference is not None
    assert difference.receiver == "executor"
    first, *rest = difference.lines()
    assert "StepPlan" in first
    assert len(rest) == 1
    assert rest[0].startswith("  starts[0]: recorded ")


@pytest.mark.parametrize("kind", [StepPlan, TokensReady, BlocksReserved])
def test_a_message_that_was_not_recorded_is_a_difference(
    kind: type, recorded: tuple[Path, Heard]
) -> None:
    other = with_message(read_recording(recorded[0]), kind, lambda _: None)

    assert replay(other).difference is not None


@pytest.mark.parametrize("kind", [StepDone, ResetPrefixCache])
def test_cores_that_did_not_hear_the_same_say_something_else(
    kind: type, recorded: tuple[Path, Heard]
) -> None:
    place = 1 if kind is ResetPrefixCache else 5
    other = with_message(read_recording(recorded[0]), kind, lambda _: None, place)

    assert replay(other).difference is not None


def test_cores_that_decide_differently_differ(
    recorded: tuple[Path, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admission, "_first_chunk", lambda *_: 1)

    assert replay(read_recording(recorded[0])).difference is not None


# Failures


def plant(patch: pytest.MonkeyPatch) -> None:
    """The ledger's check notices."""

    confirm = Ledger.confirm

    def boast(
        self: Ledger, plan: StepPlan, token_ids: Ints, *, is_current: bool
    ) -> tuple[Longs, Ints, Ints]:
        confirmed = confirm(self, plan, token_ids, is_current=is_current)
        self.written[plan.slots[plan.slots == 3]] = self.scheduled[3] + 1
        return confirmed

    patch.setattr(Ledger, "confirm", boast)


def record_failure(path: Path) -> None:
    with pytest.raises(EngineDead):
        record(path, check_invariants=True)


def test_a_dying_engine_writes_its_recording_and_the_failure_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    record_failure(tmp_path / "recording")

    replayed = replay(read_recording(tmp_path / "recording"))

    assert replayed.failure is not None
    assert replayed.failure.actor == "scheduler"
    assert str(replayed.failure) == "AssertionError: more is written than scheduled"
    assert replayed.difference is None


def test_a_failure_that_does_not_come_again_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        record_failure(tmp_path / "recording")

    difference = replay(read_recording(tmp_path / "recording")).difference

    assert difference is not None
    assert "recorded: AssertionError: more is written" in "\n".join(difference.lines())


def test_a_failure_that_was_not_recorded_is_a_difference(
    recorded: tuple[Path, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockPool, "release", lambda *_: 1 // 0)

    difference = replay(read_recording(recorded[0])).difference

    assert difference is not None
    assert "replayed: ZeroDivisionError" in "\n".join(difference.lines())


def test_a_failure_outside_the_cores_is_told_and_the_cores_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = SimulatedDevice.launch

    def fragile(self: SimulatedDevice, plan: StepPlan, done: StepAddress) -> None:
        if plan.step > 12:
            raise OSError("the card has fallen off the bus")
        launch(self, plan, done)

    monkeypatch.setattr(SimulatedDevice, "launch", fragile)
    record_failure(tmp_path / "recording")

    replayed = replay(read_recording(tmp_path / "recording"))

    assert replayed.difference is None
    assert replayed.failure is not None
    assert replayed.failure.actor == "executor"
    assert replayed.steps >= 12
