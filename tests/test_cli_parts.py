"""The parts of the command line that need no process: messages, commands, history, workloads."""

import os
import stat
from pathlib import Path

import pytest

from stepahead import SamplingParams
from stepahead.cli.chat.history import MAX_BYTES, MAX_ENTRIES, BoundedHistory, history_file
from stepahead.cli.chat.slash import SlashCommand, is_open, parse_slash, unquoted
from stepahead.cli.chat.stats import answer_rows, sampling_rows
from stepahead.cli.output import without_controls
from stepahead.messages import Delta, FinishReason, Timings, Usage


def loaded(path: Path | None) -> list[str]:
    """The history as the prompt gets it: the newest first."""
    return list(BoundedHistory(path).load_history_strings())


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/help", SlashCommand("/help", "")),
        ("/system  You are a pirate. ", SlashCommand("/system", "You are a pirate.")),
        ("/EXIT\n", SlashCommand("/exit", "")),
        ("/nonsense", SlashCommand("/nonsense", "")),
        ("/", SlashCommand("/", "")),
    ],
)
def test_a_line_that_begins_like_a_command_is_one(line: str, command: SlashCommand) -> None:
    assert parse_slash(line) == command


@pytest.mark.parametrize(
    "text", ["hello", " /help", "/etc/passwd holds what?", "/* a */", "// note", "/a\nb", ""]
)
def test_paths_comments_and_pasted_texts_are_messages(text: str) -> None:
    assert parse_slash(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"""one\ntwo"""', "one\ntwo"),
        ('"""\n  one\n\ntwo\n"""\n', "  one\n\ntwo"),
        ('"""short"""', "short"),
        ('""""""', ""),
        ('say """this"""', 'say """this"""'),
        ("plain", "plain"),
    ],
)
def test_three_quotes_hold_a_message_of_many_lines(text: str, message: str) -> None:
    assert not is_open(text)
    assert unquoted(text) == message


@pytest.mark.parametrize("text", ['"""', '"""a', '"""a\n""', '"""a\n"""b', '""""'])
def test_three_quotes_are_open_until_three_others_end_the_text(text: str) -> None:
    assert is_open(text)


def test_the_history_comes_back_in_a_later_chat_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.jsonl"

    for line in ("first", "two\nlines", "naïve 🙂 \x1b[0m"):
        BoundedHistory(path).store_string(line)

    assert loaded(path) == ["naïve 🙂 \x1b[0m", "two\nlines", "first"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_history_is_bounded_in_entries_and_in_bytes(tmp_path: Path) -> None:
    many, large = tmp_path / "many", tmp_path / "large"
    for number in range(MAX_ENTRIES + 5):
        BoundedHistory(many).store_string(str(number))
    for letter in "abc":
        BoundedHistory(large).store_string(letter * (MAX_BYTES // 2))

    assert len(loaded(many)) == MAX_ENTRIES
    assert len(many.read_text().splitlines()) == MAX_ENTRIES
    assert [entry[0] for entry in loaded(large)] == ["c", "b"]
    assert large.stat().st_size < MAX_BYTES + 100


def test_a_damaged_history_is_read_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"one"\n\xff\xfe garbage\n{"a": 1}\n"two"\n"cut')

    assert loaded(path) == ["two", "one"]


def test_a_history_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    history = BoundedHistory(tmp_path / "file" / "history")

    history.store_string("kept nowhere")

    assert list(history.load_history_strings()) == []
    assert loaded(None) == []


def test_the_history_lies_in_the_state_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "stepahead" / "chat-history.jsonl"

    monkeypatch.setenv("XDG_STATE_HOME", "relative is to be ignored")
    monkeypatch.setenv("HOME", "/home/ada")
    assert history_file() == Path("/home/ada/.local/state/stepahead/chat-history.jsonl")


def test_an_answer_cannot_command_a_terminal() -> None:
    assert without_controls("a\x1b[2Jb\r\x07c\x9bd\n\te 🙂") == "a[2Jbcd\n\te 🙂"


def test_the_stats_of_an_answer_name_tokens_times_and_cache_hits() -> None:
    final = Delta(
        request_id="r",
        index=0,
        text="",
        token_ids=(),
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=30, completion_tokens=11, cached_tokens=16),
        timings=Timings(queue_s=0.004, ttft_s=0.05, decode_s=0.5, total_s=0.55, preemptions=0),
    )

    assert dict(answer_rows(final)) == {
        "prompt tokens": "30, 16 from the prefix cache",
        "answer tokens": "11, ended by stop",
        "time to first token": "50 ms: queue 4.0 ms, prefill 46 ms",
        "speed after it": "20.0 tokens/s",
    }


def test_the_stats_tell_how_answers_are_sampled_and_what_the_model_recommends() -> None:
    model = SamplingParams(temperature=0.2, top_p=0.9)

    own = dict(sampling_rows(model, model))
    other = dict(sampling_rows(SamplingParams(temperature=0), model))

    assert own["sampling"] == "temperature 0.2, top_p 0.9"
    assert other["sampling"] == "temperature 0"
    assert other["the model recommends"] == "temperature 0.2, top_p 0.9"


def test_the_history_is_read_only_where_the_home_is(tmp_path: Path) -> None:
    folder = tmp_path / "stepahead"
    folder.mkdir()
    path = folder / "history"
    BoundedHistory(path).store_string("before")
    os.chmod(folder, 0o500)
    os.chmod(path, 0o400)

    BoundedHistory(path).store_string("after")

    assert loaded(path)[-1] == "before"
