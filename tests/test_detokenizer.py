"""The Detokenizer actor: slices, what waits meanwhile, and what a stop string makes of it."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from stepahead import EngineDead, FinishReason
from stepahead.actors.actor import Mailbox
from stepahead.actors.detokenizer import SLICE, Detokenizer, DetokenizerMessage
from stepahead.actors.journal import Journal
from stepahead.actors.streams import OutputStream, OutputStreams
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.messages import (
    Delta,
    Ended,
    Finished,
    SamplingParams,
    StopMatched,
    TokensReady,
    frozen_ints,
    frozen_longs,
)

from .batching import make_request


class Desk:
    """A Detokenizer whose turns are called one by one; a millisecond passes with each message."""

    def __init__(self, requests: int, **params: Any) -> None:
        self.now_ns = 0
        self.is_scheduler_due = False
        journal = Journal(lambda: self.now_ns)
        self.mailbox: Mailbox[DetokenizerMessage] = Mailbox("detokenizer", journal)
        self.stopped: list[StopMatched] = []
        self.finished: list[Finished] = []
        streams = OutputStreams()
        self.detokenizer = Detokenizer(
            self.mailbox,
            ToyTokenizer(),
            streams,
            scheduler=self.stopped.append,
            finished=self.finished.append,
            is_scheduler_due=lambda: self.is_scheduler_due,
        )
        self.streams: dict[int, OutputStream] = {}
        for serial in range(requests):
            self.streams[serial] = streams.open(serial, f"r{serial}")
            sampling = SamplingParams(max_tokens=99, **params)
            self.post(replace(make_request(serial), params=sampling))
        self.turn()

    def post(self, message: DetokenizerMessage) -> None:
        self.now_ns += 1_000_000
        self.mailbox.post(message)

    def say(self, text: str, *ended: Ended) -> None:
        """Every request gets this character; then some end."""
        serials = sorted(self.streams)
        token_ids = frozen_ints([ord(text)] * len(serials))
        self.post(TokensReady(frozen_longs(serials), token_ids, ended=ended))

    def turn(self) -> None:
        arrived = self.mailbox.drain()
        if arrived is None:
            self.detokenizer._show_slice()
        else:
            self.detokenizer.react(arrived)

    def shown(self, serial: int) -> list[str]:
        return [delta.text for delta in self.streams[serial]._pending]

    @property
    def last(self) -> Delta:
        return self.streams[0]._pending[-1]


def test_a_turn_shows_a_slice_and_the_rest_follows_in_their_order() -> None:
    desk = Desk(requests=2 * SLICE + 3)
    desk.say("a")

    counts = []
    for _ in range(4):
        desk.turn()
        counts.append(sum(bool(desk.shown(serial)) for serial in desk.streams))

    assert counts == [SLICE, 2 * SLICE, 2 * SLICE + 3, 2 * SLICE + 3]
    assert all(desk.shown(serial) == ["a"] for serial in desk.streams)


def test_what_arrives_before_a_request_was_shown_comes_as_one_delta() -> None:
    desk = Desk(requests=2 * SLICE)
    desk.say("a")
    desk.turn()
    desk.say("b")

    for _ in range(4):
        desk.turn()

    assert desk.shown(0) == ["a", "b"]
    assert desk.shown(2 * SLICE - 1) == ["ab"]


def test_nobody_waits_longer_because_others_have_more() -> None:
    """Who waits longest is shown first, whatever arrives meanwhile."""
    desk = Desk(requests=3 * SLICE)
    for _ in range(3):
        desk.say("a")
        desk.turn()

    assert all(desk.shown(serial) for serial in range(SLICE))
    assert desk.shown(SLICE)[0] == "aa"


def test_while_the_scheduler_has_something_to_do_nothing_more_is_shown() -> None:
    desk = Desk(requests=3 * SLICE)
    desk.say("a")

    async def scenario() -> None:
        desk.is_scheduler_due = True
        showing = asyncio.create_task(desk.detokenizer.attend())
        for _ in range(10):
            await asyncio.sleep(0)
        assert sum(bool(desk.shown(serial)) for serial in desk.streams) == SLICE
        desk.is_scheduler_due = False
        await showing

    run_virtual(scenario())
    assert all(desk.shown(serial) for serial in desk.streams)


def test_times_are_those_of_arrival_however_late_a_token_is_shown() -> None:
    desk = Desk(requests=1)
    desk.say("a")
    first_ns = desk.now_ns
    desk.say("b", Ended(0, FinishReason.LENGTH))
    last_ns = desk.now_ns
    desk.now_ns += 10**9

    desk.turn()

    timings = desk.last.timings
    assert timings is not None
    assert timings.ttft_s == (first_ns - 1_000_000) / 1e9
    assert timings.decode_s == (last_ns - first_ns) / 1e9
    assert timings.total_s == (last_ns - 1_000_000) / 1e9


def test_gaps_between_tokens_are_told_by_percentile_up_to_the_token_that_counts() -> None:
    desk = Desk(requests=1, stop=("f",))
    times_ns = []
    for place, character in enumerate("abcdefg"):
        desk.now_ns += place * 1_000_000
        desk.say(character)
        times_ns.append(desk.now_ns)

    desk.turn()

    gaps_s = [(later - earlier) / 1e9 for earlier, later in pairwise(times_ns[:6])]
    assert desk.last.timings is not None
    assert desk.last.timings.gap_p50_s == gaps_s[2]
    assert desk.last.timings.gap_p99_s == gaps_s[-1]


@pytest.mark.parametrize("end", [FinishReason.STOP, FinishReason.LENGTH])
def test_what_is_behind_a_stop_string_does_not_count_where_the_end_was_known_too(
    end: FinishReason,
) -> None:
    """Field case 022: the match and the end are shown together."""
    desk = Desk(requests=1, stop=("bc",))
    for character in "abcd":
        desk.say(character)
    desk.say("e", Ended(0, end, ord("e") if end is FinishReason.STOP else None))

    desk.turn()

    assert (desk.last.text, desk.last.stop_reason) == ("a", "bc")
    assert desk.last.token_ids == (ord("a"), ord("b"), ord("c"))
    assert desk.last.usage is not None
    assert desk.last.usage.completion_tokens == 3


def test_one_token_has_no_gap() -> None:
    desk = Desk(requests=1)
    desk.say("a", Ended(0, FinishReason.LENGTH))

    desk.turn()

    assert desk.last.timings is not None
    assert desk.last.timings.gap_p50_s is None


def test_a_stop_string_found_late_drops_what_came_after_it() -> None:
    desk = Desk(requests=1, stop=("bc",))
    for character in "abcde":
        desk.say(character)

    desk.turn()

    assert desk.last.text == "a"
    assert desk.last.token_ids == (97, 98, 99)
    assert desk.last.finish_reason is FinishReason.STOP
    assert desk.last.usage is not None
    assert desk.last.usage.completion_tokens == 3
    assert desk.stopped == [StopMatched(0)]
    assert len(desk.finished) == 1


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.TIMEOUT])
def test_a_stop_string_beats_an_end_that_has_arrived_too(reason: FinishReason) -> None:
    """Rule 26; and the Scheduler, who ended it, need not be told."""
    desk = Desk(requests=1, stop=("b",))
    desk.say("a")
    desk.say("b")
    desk.say("c", Ended(0, reason))

    desk.turn()

    assert (desk.last.text, desk.last.stop_reason) == ("a", "b")
    assert desk.stopped == []
    assert len(desk.finished) == 1


def test_tokens_and_an_end_after_a_stop_string_are_nobodys() -> None:
    desk = Desk(requests=1, stop=("b",))
    desk.say("b")
    desk.turn()
    desk.say("c")
    desk.say("d", Ended(0, FinishReason.ABORT))

    desk.turn()

    assert len(desk.streams[0]._pending) == 1
    assert len(desk.finished) == 1


def test_a_final_stop_id_counts_and_has_no_text_also_among_others() -> None:
    desk = Desk(requests=1)
    for character in "abc":
        desk.say(character)
    desk.say("d", Ended(0, FinishReason.STOP, stop_token_id=100))

    desk.turn()

    assert desk.last.text == "abc"
    assert desk.last.token_ids == (97, 98, 99, 100)


def test_every_reader_of_a_dead_engine_gets_an_exception_of_its_own() -> None:
    """One shared by hundreds would carry the trace of each of them."""

    async def scenario() -> list[BaseException]:
        streams = OutputStreams()
        opened = [streams.open(serial, str(serial)) for serial in range(3)]
        failure = EngineDead("an actor failed")
        failure.__cause__ = ZeroDivisionError("why")
        streams.fail_all(failure)
        errors = []
        for stream in opened:
            with pytest.raises(EngineDead, match="an actor failed") as caught:
                await stream.next()
            errors.append(caught.value)
        return list(errors)

    errors = run_virtual(scenario())
    assert len(set(map(id, errors))) == 3
    assert all(isinstance(error.__cause__, ZeroDivisionError) for error in errors)
