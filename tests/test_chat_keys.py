"""The keys of a chat on a pseudo-terminal: lines, pastes, completion, editor, sizes, leaving."""

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chat_terminal import READY, ask, say, started
from .cli_process import Terminal


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One process for the tests that do not end it; its answers have 4 tokens at most."""
    home = tmp_path_factory.mktemp("home")
    editor = home / "editor"
    editor.write_text('#!/bin/sh\nprintf " written\\n in an editor" >> "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    with started(home, "--max-tokens", "4", VISUAL=str(editor)) as terminal:
        yield terminal


@pytest.fixture
def chat(running: Terminal) -> Terminal:
    """A conversation that has only begun."""
    running.resize(100)
    ask(running, "/clear")
    return running


def last_question(chat: Terminal) -> str:
    """What the model was asked, in one line."""
    return ask(chat, "/undo").partition("Taken back: ")[2].partition(" (0 turns left)")[0]


def test_three_quotes_hold_several_lines(chat: Terminal) -> None:
    chat.send('"""first\rsecond\r\rthird"""\r')
    chat.wait_for('third"""\n')
    chat.wait_for(READY)

    assert last_question(chat) == "first second third"


def test_alt_enter_starts_a_new_line(chat: Terminal) -> None:
    chat.send("first\x1b\rsecond\r")
    chat.wait_for("second\n")
    chat.wait_for(READY)

    assert last_question(chat) == "first second"


def test_a_paste_of_200_lines_is_one_message(chat: Terminal) -> None:
    lines = [f"line {number}" for number in range(200)]
    chat.send("\x1b[200~" + "\n".join(lines) + "\x1b[201~")
    chat.wait_for("line 199")
    chat.send("\r")
    chat.wait_for("tokens")
    chat.wait_for(READY)

    assert last_question(chat).startswith("line 0 line 1 line 2")


def test_tab_completes_commands_and_what_follows_them(chat: Terminal) -> None:
    chat.send("/sta\t")
    chat.wait_for("/stats")
    chat.send("\r")
    chat.wait_for("none yet")
    chat.wait_for(READY)

    chat.send("/set temp\t")
    chat.wait_for("/set temperature")
    chat.send("\r")
    chat.wait_for("by an option")
    chat.wait_for(READY)

    chat.send("/re\t")
    chat.wait_for("/regen")
    chat.send("\x03")
    chat.wait_for(READY)


def test_the_editor_goes_on_with_what_was_typed(chat: Terminal) -> None:
    chat.send("begun and\x18\x05")
    chat.wait_for("in an editor")
    chat.send("\r")
    chat.wait_for("tokens")
    chat.wait_for(READY)

    assert last_question(chat) == "begun and written in an editor"


@pytest.mark.parametrize("columns", [20, 33])
def test_wide_and_joined_characters_are_taken_and_answered_at_any_width(
    chat: Terminal, columns: int
) -> None:
    text = "日本語のテキスト" * 3 + "👨‍👩‍👧 e\u0301"
    chat.resize(columns)
    chat.send(f"{text}\r")
    chat.wait_for("tok")
    chat.wait_for(READY)
    chat.resize(100)

    assert last_question(chat) == text


def test_a_terminal_of_20_columns_gets_everything(tmp_path: Path) -> None:
    with started(tmp_path, "--max-tokens", "4", columns=20) as chat:
        say(chat, "hello")
        chat.wait_for("cut off")
        chat.wait_for(READY)
        stats = ask(chat, "/stats")
        assert "host_blocks_total" in stats.replace("\n", "").replace(" ", "")
        assert max(map(len, stats.splitlines())) <= 20


def test_the_first_ctrl_c_at_the_prompt_warns_and_the_second_leaves(tmp_path: Path) -> None:
    with started(tmp_path) as chat:
        chat.send("half a li\x03")
        chat.wait_for("Ctrl-C once more leaves")
        chat.wait_for(READY)
        chat.send("\x03")

        assert chat.exit_code() == 130
        assert "Traceback" not in chat.shown
        assert chat.modes() == chat.modes_before


def test_whatever_is_typed_after_the_warning_takes_it_back(chat: Terminal) -> None:
    for _ in range(2):
        chat.send("\x03")
        chat.wait_for("Ctrl-C once more leaves")
        chat.wait_for(READY)
        ask(chat, "/load")

    os.kill(chat.process.pid, signal.SIGINT)
    chat.wait_for("Ctrl-C once more leaves")
    chat.wait_for(READY)
    chat.send("x\x03")
    chat.wait_for("Ctrl-C once more leaves")
    chat.wait_for(READY)
    assert "No session" in ask(chat, "/load")


def test_a_command_that_is_none_or_fails_says_so_and_the_chat_goes_on(chat: Terminal) -> None:
    assert "no command /regenerate; did you mean /regen?" in ask(chat, "/regenerate")
    assert "No such file" in " ".join(ask(chat, "/load nowhere").split())
    assert "temperature is -1" in ask(chat, "/set temperature -1")
    assert "tokens" in ask(chat, "still there?")


def test_ctrl_d_during_an_answer_leaves_after_it(tmp_path: Path) -> None:
    with started(tmp_path, "--max-tokens", "4") as chat:
        chat.send("hello\r\x04")

        assert chat.exit_code() == 0
        assert "cut off at max_tokens" in chat.shown
