"""The chat on a real pseudo-terminal: keys, pastes, commands, interruptions, leaving."""

import os
import re
import signal
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chat_terminal import READY, ask, prompt_tokens, say, started
from .cli_process import COMMAND, GOES_ON, Terminal, environment, piped

ENDLESS = ("--ignore-eos", "--max-tokens", "6000")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One process for the tests that do not end it; its answers have 8 tokens at most."""
    with started(tmp_path_factory.mktemp("home"), "--max-tokens", "8") as terminal:
        yield terminal


@pytest.fixture
def chat(simulated: Terminal) -> Terminal:
    """A conversation that has only begun."""
    ask(simulated, "/clear")
    return simulated


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One process whose answers are long enough to be stopped."""
    with started(tmp_path_factory.mktemp("home"), *ENDLESS) as terminal:
        yield terminal


@pytest.fixture
def talker(endless: Terminal) -> Terminal:
    """A conversation that has only begun, with a model that talks and talks."""
    ask(endless, "/clear")
    return endless


def test_a_message_is_answered_and_ctrl_d_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with started(tmp_path, "--max-tokens", "8") as chat:
        answer = ask(chat, "hello")
        during = chat.modes()
        chat.send("\x04")

        assert answer
        assert chat.exit_code() == 0
        assert not during[3] & termios.ECHO
        assert chat.modes() == chat.modes_before


def test_exit_leaves_too(tmp_path: Path) -> None:
    with started(tmp_path) as chat:
        say(chat, "/exit")

        assert chat.exit_code() == 0


def test_a_paste_of_five_lines_is_one_message(chat: Terminal) -> None:
    chat.send("\x1b[200~one\ntwo\nthree\nfour\nfive\x1b[201~")
    chat.wait_for("five")
    chat.send("\r")
    chat.wait_for(READY)

    assert "1 answers" in ask(chat, "/stats")


def test_every_turn_sends_the_whole_conversation_and_finds_it_in_the_prefix_cache(
    chat: Terminal,
) -> None:
    ask(chat, "my name is Ada Lovelace, please remember it")
    first = ask(chat, "/stats")
    ask(chat, "what is my name?")
    second = ask(chat, "/stats")

    assert prompt_tokens(first) == (len("my name is Ada Lovelace, please remember it") + 3, 0)
    assert prompt_tokens(second)[0] > prompt_tokens(first)[0] + len("what is my name?")
    assert prompt_tokens(second)[1] >= 32


def test_stats_name_tokens_times_and_how_answers_are_sampled(chat: Terminal) -> None:
    assert "none yet" in ask(chat, "/stats")

    ask(chat, "hello")

    stats = ask(chat, "/stats")
    for name in ("answer tokens", "time to first token", "tokens/s", "temperature 0", "engine"):
        assert name in stats


STORY = "Write a very long story about the sea."


def test_ctrl_c_stops_the_answer_and_what_was_said_is_kept(talker: Terminal) -> None:
    say(talker, STORY)
    talker.wait_for_more()
    talker.send("\x03")
    talker.wait_for("stopped")
    talker.wait_for(READY)

    stopped = ask(talker, "/stats")
    assert "ended by abort" in stopped
    say(talker, "Go on.")
    talker.wait_for_more()
    talker.send("\x03")
    talker.wait_for("stopped")
    talker.wait_for(READY)
    assert prompt_tokens(ask(talker, "/stats"))[0] > prompt_tokens(stopped)[0] + 5


def test_ctrl_c_right_after_the_question_takes_it_back(talker: Terminal) -> None:
    talker.send(f"{STORY}\r\x03")
    talker.wait_for("stopped")
    talker.wait_for(READY)

    assert talker.process.poll() is None


def test_a_sent_interrupt_stops_the_answer_as_the_key_does(talker: Terminal) -> None:
    say(talker, STORY)
    talker.wait_for_more()
    os.kill(talker.process.pid, signal.SIGINT)
    talker.wait_for("stopped")
    talker.wait_for(READY)

    assert "ended by abort" in ask(talker, "/stats")


def test_what_is_typed_during_an_answer_waits_for_the_prompt(talker: Terminal) -> None:
    say(talker, STORY)
    talker.wait_for_more()
    talker.send("/system from the keyboard\r\x1b[200~/stats is\npasted\x1b[201~")
    talker.send("\x03")

    talker.wait_for("stopped")
    talker.wait_for("The system prompt is: from the keyboard")
    talker.wait_for("pasted")
    talker.send("\x03")
    talker.wait_for(READY)


def test_ctrl_c_during_a_long_prefill_takes_the_question_back(tmp_path: Path) -> None:
    slow = ("--max-num-batched-tokens", "16", "--max-num-seqs", "1")
    with started(tmp_path, *slow) as chat:
        chat.send("\x1b[200~" + "a long text\n" * 500 + "\x1b[201~")
        chat.wait_for("a long text")
        chat.send("\r")
        chat.send("\x03")
        chat.wait_for("(stopped)")
        chat.wait_for(READY)

        assert "nothing to take back" in ask(chat, "/undo")


def test_ctrl_c_gives_a_command_up_and_the_chat_goes_on(tmp_path: Path) -> None:
    slow = tmp_path / "xclip"
    slow.write_text("#!/bin/sh\necho copying >/dev/tty\nexec sleep 30\n")
    slow.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with started(tmp_path, "--max-tokens", "4", DISPLAY=":0", PATH=path) as chat:
        ask(chat, "hello")
        say(chat, "/copy")
        chat.wait_for("copying")
        chat.send("\x03")
        chat.wait_for("(stopped)")
        chat.wait_for(READY)

        assert "tokens" in ask(chat, "still there?")


def test_ctrl_c_while_the_model_loads_leaves_at_once(tmp_path: Path) -> None:
    with Terminal("chat", env=environment(tmp_path)) as loading:
        loading.wait_for("loading")
        loading.send("\x03")

        assert loading.exit_code() == 130
        assert "Traceback" not in loading.shown
        assert loading.modes() == loading.modes_before


def test_what_is_typed_while_the_model_loads_is_shown_at_the_prompt_alone(tmp_path: Path) -> None:
    words = ("chat", "--device", "simulated", "--max-tokens", "4")
    with Terminal(*words, env=environment(tmp_path)) as chat:
        chat.wait_for("loading")
        chat.send("typed early\r")
        chat.wait_for("tok/s")
        before, _ = chat.shown.split("/help helps")

        assert "typed early" not in before
        assert ">>> typed early" in chat.shown


def test_ctrl_c_drops_a_line_that_was_begun(chat: Terminal) -> None:
    chat.send("half a li")
    chat.wait_for("half a li")
    chat.send("\x03")
    chat.wait_for(READY)

    assert "none yet" in ask(chat, "/stats")


def test_a_home_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    in_the_way = tmp_path / "home"
    in_the_way.write_text("a file, not a folder")

    with started(in_the_way, "--max-tokens", "4") as chat:
        assert ask(chat, "hello")
        chat.send("\x04")
        assert chat.exit_code() == 0


WRITTEN = "engine-cli: the last messages were written to"


def test_what_a_signal_says_leaves_the_line_that_is_typed_as_it_is(tmp_path: Path) -> None:
    with started(tmp_path, "--max-tokens", "4", TMPDIR=str(tmp_path)) as chat:
        chat.send("half")
        chat.wait_for("half")
        os.kill(chat.process.pid, signal.SIGUSR1)
        chat.wait_for(WRITTEN)
        chat.wait_for(">>>")
        chat.wait_for("half")
        say(chat, "-asked")
        chat.wait_for("tok/s")


def test_what_a_signal_says_in_an_answer_has_a_line_of_its_own(tmp_path: Path) -> None:
    with started(tmp_path, *ENDLESS, TMPDIR=str(tmp_path)) as chat:
        say(chat, STORY)
        chat.wait_for_more()
        os.kill(chat.process.pid, signal.SIGUSR1)
        chat.wait_for(f"\n{WRITTEN}")
        chat.wait_for("recording\n")
        chat.wait_for_more()
        chat.send("\x03")
        chat.wait_for("stopped")


def test_ctrl_z_stops_the_chat_and_it_goes_on_as_it_was(tmp_path: Path) -> None:
    """At the prompt and in an answer."""
    words = ("chat", "--device", "simulated", *ENDLESS)
    env = environment(tmp_path)
    with Terminal(*words, env=env, command=(*GOES_ON, *COMMAND)) as chat:
        chat.wait_for(READY)
        chat.send("half")
        chat.wait_for("half")
        chat.send("\x1a")
        chat.wait_for("(in the shell)")
        chat.wait_for("half")
        say(chat, "-asked")
        chat.wait_for_more()
        chat.send("\x1a")
        chat.wait_for('(again)\n"$@"\n')  # what the shell says as it goes on
        chat.wait_for_more()
        chat.send("\x03")
        chat.wait_for("stopped")
        chat.wait_for(READY)
        chat.send("\x04")
        assert chat.exit_code() == 0
        assert chat.modes() == chat.modes_before


def test_a_log_on_the_same_screen_is_not_painted_over(tmp_path: Path) -> None:
    with started(tmp_path, "--max-tokens", "8", "--log", "info") as chat:
        say(chat, "hello")
        chat.wait_for("request.finished")
        chat.wait_for("tok/s")

    assert not re.search(r"\x1b\[2m\d+ token", chat.raw)  # as it is where answers have colours


def test_no_color_means_no_colour(tmp_path: Path) -> None:
    with started(tmp_path, "--max-tokens", "8", NO_COLOR="1") as chat:
        ask(chat, "/help")

        assert "\x1b[3" not in chat.raw.replace("\x1b[3D", "").replace("\x1b[39m", "")
        assert "\x1b[1m" not in chat.raw


def test_another_model_goes_on_under_the_flight_recorder(tmp_path: Path) -> None:
    with started(tmp_path, "--max-tokens", "4", TMPDIR=str(tmp_path)) as chat:
        ask(chat, "hello")
        ask(chat, "/model another")
        ask(chat, "still there?")
        os.kill(chat.process.pid, signal.SIGUSR1)
        chat.wait_for("the last messages were written to")
        (path,) = tmp_path.glob("*.recording")

        assert "chat-2 (serial 1)" in piped("explain", str(path), "chat-2").stdout
