"""The small Gantt chart of an answer, and what of its story is drawn there."""

from stepahead.actors.story.story import (
    Cause,
    Chunk,
    Event,
    Phase,
    PhaseSpan,
    Stall,
    Story,
    TokenAccount,
    Wait,
)
from stepahead.cli.chat.gantt import Bar, gantt
from stepahead.cli.chat.story import MOST_CHUNKS, MOST_STALLS, bars

MS = 1_000_000

BARS = (
    Bar("queue", 0, 0.001),
    Bar("prefill", 0.001, 0.4, remark="120 tokens in 2 chunks"),
    Bar("decode", 0.4, 1.0),
)


def test_bars_stand_under_each_other_in_time() -> None:
    assert gantt(BARS, 1.0, columns=60).splitlines() == [
        "queue   #                                            1.0 ms",
        "prefill ##################                           399 ms",
        "decode                   ########################### 600 ms",
    ]


def test_a_remark_is_shown_where_there_is_room_and_no_line_is_too_long() -> None:
    for columns in (20, 26, 60, 80, 120):
        lines = gantt(BARS, 1.0, columns=columns).splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[1].endswith("  120 tokens in 2 chunks") == (columns >= 80)


def test_what_takes_no_time_is_still_seen() -> None:
    assert gantt([Bar("queue", 0, 0)], 0, columns=40).split() == ["queue", "#", "0.0", "ms"]


def chunk(number: int, mates: tuple[str, ...] = ()) -> Chunk:
    """A step of 10 ms that computes 512 tokens."""
    began = 100 + 10 * number
    return Chunk(
        t_ns=began * MS,
        step=number,
        start=512 * number,
        length=512,
        step_tokens=600,
        mates=mates,
        is_again=False,
        failed=None,
        began_ns=began * MS,
        done_ns=(began + 10) * MS,
    )


def told(*events: Event) -> Story:
    """A story of 10 ms in the queue, 300 of prefill and 200 of decode; it began at 90 ms."""
    phases = (
        PhaseSpan(Phase.FORGOTTEN, 80 * MS, 90 * MS),
        PhaseSpan(Phase.QUEUE, 90 * MS, 100 * MS),
        PhaseSpan(Phase.PREFILL, 100 * MS, 400 * MS),
        PhaseSpan(Phase.DECODE, 400 * MS, 600 * MS),
    )
    tokens = TokenAccount(512, 0, 512, 0, 10, 0, 0, 0)
    return Story("r", 0, 1, 1, True, phases, events, tokens, None, None)


def test_phases_and_chunks_are_drawn_from_the_beginning_of_the_story() -> None:
    drawn = bars(told(chunk(0), chunk(1, mates=("a", "b"))))

    assert drawn == [
        Bar("queue", 0.010, 0.020),
        Bar("prefill", 0.020, 0.320),
        Bar(" chunk", 0.020, 0.030, "512 tokens"),
        Bar(" chunk", 0.030, 0.040, "512 tokens, beside 2"),
        Bar("decode", 0.320, 0.520),
    ]


def test_many_chunks_are_drawn_as_some_and_the_rest() -> None:
    chunks = [bar for bar in bars(told(*map(chunk, range(30)))) if "chunk" in bar.name]

    assert len(chunks) == MOST_CHUNKS
    assert chunks[-1] == Bar(" chunks", 0.09, 0.32, f"{30 - MOST_CHUNKS + 1} more")


def test_the_longest_stalls_are_drawn_with_what_took_longest_in_them() -> None:
    def stall(number: int) -> Stall:
        begin, end = (400 + 20 * number) * MS, (402 + 22 * number) * MS
        causes = (
            Wait(Cause.DEVICE, begin, end - MS, "step 9 computed 2,048 tokens of b"),
            Wait(Cause.HOST, end - MS, end),
        )
        return Stall(t_ns=end, begin_ns=begin, token=number, causes=causes)

    stalls = [bar for bar in bars(told(*map(stall, range(6)))) if bar.name == "stall"]

    assert len(stalls) == MOST_STALLS
    assert [bar.remark.split(":")[0] for bar in stalls] == [f"token {n}" for n in range(2, 6)]
    assert stalls[-1].remark == "token 5: step 9 computed 2,048 tokens of b"
