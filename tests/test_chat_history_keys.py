"""Up on a pseudo-terminal: what was typed before is there however early the key comes."""

import json
from pathlib import Path

from .chat_terminal import READY, SIMULATED, say, started
from .cli_process import Terminal, environment


def remember(home: Path, *texts: str) -> None:
    """As an earlier chat would have left it."""
    folder = home / ".local" / "state" / "stepahead"
    folder.mkdir(parents=True)
    (folder / "chat-history.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))


def test_up_before_the_first_prompt_finds_what_an_earlier_chat_was_asked(tmp_path: Path) -> None:
    remember(tmp_path, "the older", "the newer")
    env = environment(tmp_path)
    with Terminal("chat", *SIMULATED, "--max-tokens", "4", env=env) as chat:
        chat.wait_for("Ctrl-D leaves.")
        chat.send("\x1b[A\x1b[A and more\r")
        chat.wait_for("the older and more\n")
        chat.wait_for(READY)


def test_keys_in_the_moment_of_the_prompt_keep_their_order(tmp_path: Path) -> None:
    remember(tmp_path, "the newer")
    with started(tmp_path, "--max-tokens", "4") as chat:
        chat.send("\x1b[A")
        chat.send("!\r")
        chat.wait_for("the newer!\n")
        chat.wait_for(READY)


def test_up_during_an_answer_brings_its_question_back(tmp_path: Path) -> None:
    with started(tmp_path, "--ignore-eos", "--max-tokens", "6000") as chat:
        say(chat, "a question")
        chat.wait_for_more()
        chat.send("\x1b[A once more\x03")
        chat.wait_for("a question once more")
