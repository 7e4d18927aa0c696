"""The small Gantt chart of an answer."""

from stepahead.cli.chat.gantt import Bar, gantt

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
    for columns in (26, 60, 80, 120):
        lines = gantt(BARS, 1.0, columns=columns).splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[1].endswith("  120 tokens in 2 chunks") == (columns >= 80)


def test_what_takes_no_time_is_still_seen() -> None:
    assert gantt([Bar("queue", 0, 0)], 0, columns=40).split() == ["queue", "#", "0.0", "ms"]
