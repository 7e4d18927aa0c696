"""Our own lines on a narrow terminal: broken between words, and nothing is lost."""

import pytest
from wcwidth import wcswidth

from stepahead.cli.fitting import fitted

STORY = """\
r2 (serial 3): 31 prompt tokens, 20 of them cached, 14 generated, 220.0 ms
      0.0 ms  admitted; 20 of 31 tokens found in the prefix cache: what comes next was never cached
              60.0 ms for a seat (3 of 3 taken)
time: prefill 20.0 + decode 110.0 = 220.0 ms; between tokens 10.0 ms, at most 80.0 ms"""


@pytest.mark.parametrize("columns", [20, 33, 40, 80, 100])
def test_lines_fit_and_their_words_are_all_there_in_order(columns: int) -> None:
    shown = fitted(STORY, columns)

    assert max(map(wcswidth, shown.split("\n"))) <= columns
    assert shown.split() == STORY.split()


def test_what_fits_stays_as_it_is() -> None:
    assert fitted(STORY, 100) == STORY


def test_what_goes_on_stands_below_the_text_and_not_below_its_time() -> None:
    lines = fitted(STORY, 60).split("\n")

    assert lines[2] == "      0.0 ms  admitted; 20 of 31 tokens found in the prefix"
    assert lines[3] == "              cache: what comes next was never cached"


def test_a_line_of_parts_is_broken_between_them() -> None:
    assert fitted("24 tokens · 7.7 tok/s · context 1% of 8,192 · stop", 30, " · ").split("\n") == [
        "24 tokens · 7.7 tok/s ·",
        "  context 1% of 8,192 · stop",
    ]


def test_wide_characters_count_as_two_and_a_word_that_is_too_long_stays_whole() -> None:
    assert fitted("ab 日本語 日本 cd", 12).split("\n") == ["ab 日本語", "  日本 cd"]
    assert fitted("see /a/very/long/path.json now", 12).split("\n") == [
        "see",
        "  /a/very/long/path.json",
        "  now",
    ]
