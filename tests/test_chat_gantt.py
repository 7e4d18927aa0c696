"""The small Gantt chart of an answer."""

from stepahead.cli.chat.gantt import Bar, gantt

BARS = (
    Bar("queue", 0, 0.001),
    Bar("prefill", 0.001, 0.4, remark="120 tokens in 2 chunks"),
    Bar("decode", 0.4, 1.0),
)


def test_bars_stand_under_each_other_in_time() -> None:
    assert gantt(BARS, 1.0, columns=60).splitlines() == [
        "queue   #                                            1 ms",
        "prefill ##################                           399 ms",
        "decode                   ########################### 600 ms",
    ]


def test_a_narrow_terminal_gets_no_remarks_and_no_line_is_longer() -> None:
    assert all(len(line) <= 26 for line in gantt(BARS, 1.0, columns=26).splitlines())
    assert "2 chunks" not in gantt(BARS, 1.0, columns=26)
    assert "2 chunks" in gantt(BARS, 1.0, columns=120)


def test_what_takes_no_time_is_still_seen() -> None:
    assert gantt([Bar("queue", 0, 0)], 0, columns=40).split() == ["queue", "#", "0", "ms"]
