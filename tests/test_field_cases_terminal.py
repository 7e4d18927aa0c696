"""Cases met elsewhere: what terminals, pipes and interruptions do to a chat."""

import re
import subprocess
from pathlib import Path

import pytest

from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.chat import look
from stepahead.cli.chat.conversation import Chat
from stepahead.cli.chat.look import Look
from stepahead.cli.chat.session import Session
from stepahead.cli.chat.settings import Settings
from stepahead.cli.sampling_options import SamplingOptions
from stepahead.cli.terminal_size import Size

from .chat_terminal import READY, SIMULATED, ask, say, started
from .chat_vocabularies import byte_tokenizer
from .cli_process import COMMAND, DEADLINE, environment, piped
from .engines import make_engine
from .screen import Screen
from .scripted import scripted_engine

GREEDY = SamplingOptions({"temperature": 0.0, "max_tokens": 6})


def test_a_paste_is_one_message_and_ctrl_c_acts_at_once(tmp_path: Path) -> None:
    """Field case 146, with each way in which terminals end the lines of a paste."""
    with started(tmp_path, "--ignore-eos", "--max-tokens", "6000") as chat:
        for end in ("\n", "\r\n", "\r"):
            pasted = end.join(["one", "two", "three", "four", "five"])
            chat.send(f"\x1b[200~{pasted}\x1b[201~")
            chat.wait_for("five")
            chat.send("\r")
            chat.wait_for("five\n")
            chat.wait_for_more()
            chat.send("\x03")
            chat.wait_for("stopped")
            chat.wait_for(READY)

            assert "Taken back: one two three four five (0 turns left)" in ask(chat, "/undo")


def test_an_interruption_stops_one_answer_and_not_the_engine(tmp_path: Path) -> None:
    """Field case 148."""
    with started(tmp_path, "--ignore-eos", "--max-tokens", "6000") as chat:
        say(chat, "go on for ever")
        chat.wait_for_more()
        chat.send("\x03")
        chat.wait_for("stopped")
        chat.wait_for(READY)
        ask(chat, "/set max_tokens 5")

        assert "5 tokens" in ask(chat, "and now?")


@pytest.mark.parametrize(
    ("command", "redirection"),
    [("chat", "</dev/null"), ("chat --json", "<&-"), ("generate -", "<&- >&-")],
)
def test_no_input_is_no_question(command: str, redirection: str) -> None:
    """Field case 149."""
    words = " ".join([*COMMAND, command, "--model no-such-model", redirection])
    done = subprocess.run(["sh", "-c", words], capture_output=True, timeout=DEADLINE, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("is_coloured", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        "日本語のテキストは幅が二つ分あります" * 3,
        "家族は👨‍👩‍👧です。" * 4,
        "**太字** `x` 👍🏽\n\n- " + "e\u0301" * 50,
    ],
)
def test_what_is_copied_from_20_columns_is_the_answer(
    answer: str,
    is_coloured: bool,
    joins: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Field case 151."""
    monkeypatch.setattr(look, "terminal_size", lambda: Size(20, 24))
    tokenizer = byte_tokenizer(template="{{ messages[-1]['content'] }}")
    script = [(tokenizer.encode("?"), tokenizer.encode(answer))]

    async def run() -> None:
        async with scripted_engine(tokenizer, script, max_model_len=1024, num_blocks=512) as engine:
            settings = Settings(SamplingOptions({}))
            chat = Chat(engine, engine.config, Session(), settings, Look(is_coloured=is_coloured))
            await chat.ask("?")

    run_virtual(run())
    said = capsys.readouterr().out
    screen = Screen(20, 24, joins=joins)
    screen.write(said)
    plain = Screen(20, 24, joins=joins)
    plain.write(answer)
    assert screen.copied.startswith(plain.copied + "\n")


@pytest.mark.parametrize(
    ("term", "redirection"),
    [("xterm-256color", "> out"), ("xterm-256color", "> out 2> err"), ("dumb", "> out 2>&1")],
)
def test_a_file_gets_the_answer_and_nothing_else(
    tmp_path: Path, term: str, redirection: str
) -> None:
    """Field case 152."""
    words = " ".join([*COMMAND, "chat", "hi", *SIMULATED, "--max-tokens 8 </dev/null", redirection])
    env = environment(tmp_path, TERM=term)
    subprocess.run(["sh", "-c", words], cwd=tmp_path, env=env, timeout=DEADLINE, check=True)

    assert re.fullmatch(r"[^\x00-\x1f]{1,8}\n", (tmp_path / "out").read_text())
    assert not (tmp_path / "err").exists() or (tmp_path / "err").read_text() == ""


def test_every_turn_sends_all_of_the_conversation_once_and_an_evicted_prefix_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Field case 154."""

    async def run() -> None:
        async with make_engine() as engine:
            chat = Chat(engine, engine.config, Session("Be brief."), Settings(GREEDY), Look(False))
            await chat.ask("my name is Ada Lovelace")
            await chat.ask("what is my name?")
            found = chat.asked
            sent = await engine.tokenize(chat.session.asking_again())
            answer = chat.session.exchanges[-1].answer
            await engine.reset_prefix_cache()
            await chat.ask_again()
            lost = chat.asked

            assert found is not None
            assert lost is not None
            assert found.final.usage is not None
            assert lost.final.usage is not None
            assert found.final.usage.prompt_tokens == len(sent) == lost.final.usage.prompt_tokens
            text = await engine.detokenize(sent, skip_special_tokens=False)
            for part in ("<system>", "Be brief.", "my name is Ada Lovelace", "what is my name?"):
                assert text.count(part) == 1
            assert found.final.usage.cached_tokens > 32
            assert lost.final.usage.cached_tokens == 0
            assert chat.session.exchanges[-1].answer == answer

    run_virtual(run())


def test_a_dumb_terminal_gets_no_control_bytes_and_the_history_is_kept_across_runs(
    tmp_path: Path,
) -> None:
    """Field case 155; that it is bounded, and done without on a home that cannot be written, is in
    test_cli_parts."""
    with started(tmp_path, "--max-tokens", "8", TERM="dumb") as chat:
        for line in ("hello", "/help", "/stats", "/trace", "/explain", "/set", "/copy", "/nothing"):
            ask(chat, line)
        chat.send("\x04")
        assert chat.exit_code() == 0
    with started(tmp_path, "--max-tokens", "8") as later:
        later.send("y")
        later.wait_for("y")
        later.send("\x1b[A")
        later.wait_for("/nothing")

    assert not [c for c in chat.raw if c < " " and c not in "\r\n"]


def test_a_plain_chat_is_not_a_pipe(tmp_path: Path) -> None:
    with started(tmp_path, "--max-tokens", "4", "--plain") as chat:
        said = ask(chat, "hello")

    assert "cut off at max_tokens" in said
    assert "\x1b[2m" not in chat.raw
    assert piped("chat", "hello", *SIMULATED, "--max-tokens", "4").stdout.count("\n") == 1
