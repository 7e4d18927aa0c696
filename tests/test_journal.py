"""The journal: whoever listens hears of every message, and while nobody does it costs next to
nothing."""

from dataclasses import fields, is_dataclass
from itertools import count

import numpy as np
import pytest

from stepahead.actors.actor import Mailbox
from stepahead.actors.cores import CoreSetup
from stepahead.actors.journal import Heard, Journal, Turn
from stepahead.actors.recording.format import Header
from stepahead.actors.recording.recorder import Recorder
from stepahead.actors.recording.ring import MESSAGE_BYTES, Segment
from stepahead.actors.recording.sizes import ARRAY_BYTES, held_by
from stepahead.messages import Abort, Message, StepDone, frozen_ints

from .batching import make_limits
from .test_codec import SAMPLES

HEADER = Header(setup=CoreSetup(limits=make_limits(), watermark=0), model="none", device="none")


class Ticks:
    """A clock on which no two moments are the same."""

    def __init__(self) -> None:
        self._ticks = count(1)
        self.now = 0

    def __call__(self) -> int:
        self.now = next(self._ticks)
        return self.now


def test_of_a_noted_message_that_nobody_hears_only_the_numbers_stay() -> None:
    clock = Ticks()
    journal = Journal(clock)

    journal.note("kvpool", Abort(1))

    assert clock.now == 0
    assert journal.last_seq == 1
    assert journal.begin_turn("scheduler", [journal.stamp(Abort(2))]).number == 2


def test_the_recorder_keeps_of_every_message_what_a_sink_hears_of_it() -> None:
    journal = Journal(Ticks())
    recorder = Recorder(HEADER, journal)
    heard: list[Heard] = []

    def hear(actor: str, turn: Turn[Message]) -> None:
        heard.append(Heard(actor, turn))

    detach = journal.attach(hear)
    scheduler: Mailbox[Abort] = Mailbox("scheduler", journal)
    scheduler.post(Abort(1))
    scheduler.post(Abort(2))
    scheduler.drain()
    journal.note("kvpool", Abort(3))
    journal.note("executor", Abort(4))
    detach()

    assert [len(turn.envelopes) for _, turn in heard] == [2, 1, 1]
    assert list(recorder.flight.kept.turns) == heard


def test_a_recorder_that_was_stopped_keeps_no_more() -> None:
    journal = Journal(Ticks())
    recorder = Recorder(HEADER, journal)
    journal.note("kvpool", Abort(1))

    recorder.stop()
    journal.note("kvpool", Abort(2))
    journal.begin_turn("scheduler", [journal.stamp(Abort(3))])

    (only,) = recorder.flight.kept.turns
    assert [envelope.message for envelope in only.turn.envelopes] == [Abort(1)]


def arrays_in(value: object) -> int:
    """The bytes of all arrays, by looking at everything."""
    if isinstance(value, np.ndarray):
        return ARRAY_BYTES + value.nbytes
    if is_dataclass(value):
        return sum(arrays_in(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return sum(map(arrays_in, value))
    return 0


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_what_a_message_keeps_alive_is_found_in_all_its_parts(message: Message) -> None:
    assert held_by(message) == arrays_in(message)


def test_large_messages_that_come_now_and_then_are_sampled_as_often_as_they_come() -> None:
    """As in a batch whose rows cross block edges together, every so many steps."""
    segment = Segment(None)
    large, small = (StepDone(1, frozen_ints([5] * size)) for size in (30_000, 3))
    for number in range(3_400):
        message = large if number % 50 == 49 else small
        segment.parts.extend(("scheduler", number, 0, number, 0, message))
        if number % 340 == 339:  # after as many as are no multiple of that
            segment.measure()

    held = sum(map(held_by, segment.parts[5::6]))
    assert 0.7 * held < segment.bytes - 3_400 * MESSAGE_BYTES < 1.4 * held
