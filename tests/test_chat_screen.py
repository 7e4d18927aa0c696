"""How an answer looks on a terminal: heights, colours, and that nothing is ever lost by them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead.cli.chat import highlight
from stepahead.cli.chat.height import height
from stepahead.cli.chat.painter import Painter
from stepahead.cli.terminal_size import Size

from .screen import Screen

FAMILY = "👨‍👩‍👧"


def painted(text: str, *, columns: int = 40, rows: int = 24, pieces: int = 3) -> Screen:
    """An answer that came in pieces of so many characters."""
    screen = Screen(columns, rows)
    painter = Painter(screen.write, lambda: Size(columns, rows))
    for start in range(0, len(text), pieces):
        painter.show(text[start : start + pieces])
    painter.finish()
    return screen


@pytest.mark.parametrize(
    ("line", "columns", "rows"),
    [
        ("", 20, 1),
        ("x" * 20, 20, 1),
        ("x" * 21, 20, 2),
        ("你" * 10, 20, 1),
        ("你" * 10, 19, 2),  # a wide one never stands half on an edge
        ("x" + "你" * 10, 20, 2),
        ("\tx", 20, 1),
        ("e\u0301" * 20, 20, 1),
        (FAMILY, 20, 1),  # however it is drawn
        (FAMILY * 5, 20, None),  # one row where the parts are joined, two where they are not
        ("🇫🇷" * 8, 20, None),
    ],
)
def test_a_line_is_as_high_as_every_terminal_draws_it(
    line: str, columns: int, rows: int | None
) -> None:
    assert height(line, columns) == rows


def test_a_line_of_markdown_gets_its_colours_when_it_is_complete() -> None:
    screen = painted("# Title\nSome **bold**, `code` and *more* of it\n- a point\nopen **e")

    assert screen.style_of("# Title") == {highlight.BOLD}
    assert screen.style_of("**bold**") == {highlight.BOLD}
    assert screen.style_of("`code`") == {highlight.CYAN}
    assert screen.style_of("*more*") == {highlight.ITALIC}
    assert screen.style_of("- ") == {highlight.YELLOW}
    assert screen.style_of("a point") == {""}
    assert screen.style_of("open **e") == {""}


@pytest.mark.parametrize(
    "line", ["2 * 3 * 4", "snake_case_name", "a ** b ** c", "__init__ is", "1.5 x", "`open", "[x]"]
)
def test_what_only_resembles_markdown_stays_plain(line: str) -> None:
    assert highlight.prose(line) in (line, highlight.styled("__init__", highlight.BOLD) + " is")


def test_code_gets_its_colours_when_the_block_is_complete() -> None:
    open_block = "Look:\n```python\ndef double(x):\n    return 2 * x  # twice\n"

    complete = painted(open_block + "```\nDone.")

    assert complete.copied == open_block + "```\nDone."
    assert complete.style_of("def") == {highlight.MAGENTA}
    assert complete.style_of("# twice") == {highlight.DIM}
    assert complete.style_of("Done.") == {""}


def test_a_block_of_code_longer_than_the_screen_is_coloured_piece_by_piece() -> None:
    lines = [f"    number_{n} = {n}  # the {n}th" for n in range(30)]
    text = "```python\ndef all():\n" + "\n".join(lines) + "\n```"

    screen = painted(text, rows=10)

    assert screen.copied == text
    assert all(screen.style_of(f"# the {n}th") == {highlight.DIM} for n in range(30))


def test_code_in_an_unknown_language_stays_as_it_is() -> None:
    assert painted("```nonesuch\nx = 1\n```").style_of("x = 1") == {""}


def test_an_answer_that_ends_within_a_block_is_coloured_as_far_as_it_came() -> None:
    assert painted("```python\nreturn 1").style_of("return") == {highlight.MAGENTA}


def test_a_line_higher_than_the_screen_is_left_alone() -> None:
    text = "so **long** " * 30

    screen = painted(text, columns=20, rows=8)

    assert screen.copied == text
    assert screen.style_of("**long**") == {""}


def test_nothing_is_coloured_after_the_terminal_changed_its_size_meanwhile() -> None:
    sizes = iter([Size(40, 24), Size(20, 24), Size(20, 24)])
    written: list[str] = []
    painter = Painter(written.append, lambda: next(sizes))

    painter.show("**bold**\n")

    assert written == ["**bold**", "\n"]


def test_nothing_is_coloured_where_another_program_wrote_meanwhile_but_what_comes_later_is() -> (
    None
):
    written: list[str] = []
    painter = Painter(written.append, lambda: Size(40, 24))

    painter.show("**bold")
    painter.displace()
    painter.show("**\n**bold**\n")

    assert written[:4] == ["**bold", "**", "\n", "**bold**"]
    assert highlight.BOLD in written[4]


PARTS = st.sampled_from(
    [
        "a",
        "word ",
        "**b**",
        "`c`",
        "*",
        "_",
        "\n",
        "\n\n",
        "```",
        "```python\n",
        "~~~\n",
        "# ",
        "- ",
        "def f():",
        "'''",
        '"',
        "你好",
        "日本語のテキスト",
        "🙂",
        FAMILY,
        "e\u0301",
        "🇫🇷",
        "👍🏽",
        "\t",
        "x" * 23,
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(PARTS, max_size=30),
    columns=st.integers(2, 45),
    rows=st.integers(1, 20),
    pieces=st.integers(1, 9),
    joins=st.booleans(),
)
def test_what_is_copied_is_what_was_said_on_any_terminal(
    parts: list[str], columns: int, rows: int, pieces: int, joins: bool
) -> None:
    text = "".join(parts)
    screen, plain = (Screen(columns, rows, joins=joins) for _ in range(2))
    painter = Painter(screen.write, lambda: Size(columns, rows))

    for start in range(0, len(text), pieces):
        painter.show(text[start : start + pieces])
    painter.finish()
    plain.write(text)

    assert screen.copied == plain.copied
