"""`engine-cli replay` as a user meets it, on what `--record` wrote."""

from pathlib import Path

import pytest

from stepahead.actors.batching.admission import Admission
from stepahead.cli.main import main

from .mistakes import the_mistake


@pytest.fixture
def recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "recording"
    words = ["generate", "Once upon a time", "--device", "simulated", "--max-tokens", "20"]
    assert main([*words, "--record", str(path)]) == 0
    capsys.readouterr()
    return path


def test_an_identical_replay_is_one_line_and_exit_code_0(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(recording)]) == 0

    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.count("\n") == 1
    assert said.out.startswith("identical: ")
    assert " messages, 15 steps, 15 turns " in said.out


def test_a_different_replay_shows_the_first_difference_and_exit_code_1(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admission, "_first_chunk", lambda *_: 5)

    assert main(["replay", str(recording)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("different in turn ")
    assert "AdmitSequence" in lines[0]
    assert lines[1] == "  chunk: recorded 16, replayed 5"


def test_a_damaged_tail_is_told_on_standard_error(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording.write_bytes(recording.read_bytes()[:-1])

    assert main(["replay", str(recording)]) == 0

    said = capsys.readouterr()
    assert said.out.startswith("identical: ")
    assert "bytes are damaged and were not read" in said.err


@pytest.mark.parametrize(
    ("name", "fault"),
    [("story", "not a recording"), ("missing", "No such file"), (".", "Is a directory")],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(
    name: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "story").write_text("once upon a time")

    assert main(["replay", str(tmp_path / name)]) == 2

    assert fault in the_mistake(capsys)


def test_a_recording_that_cannot_be_written_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "recording"

    assert main(["generate", "x", "--device", "simulated", "--record", str(path)]) == 2

    assert "cannot record to" in capsys.readouterr().err


def test_a_replay_may_end_at_any_message(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(recording), "--until", "30"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("identical: ")
    assert " 15 steps" not in said


def test_stepping_shows_every_message_and_the_state_of_sequences_and_blocks(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = iter(
        ["", "?", "24", "seq 1", "block 0", "live", "more", "seq 7", "block -1", "", "rest"]
    )
    monkeypatch.setattr("builtins.input", lambda _: next(words))

    assert main(["replay", str(recording), "--step"]) == 0

    said = capsys.readouterr().out
    assert "scheduler   Generate(serial=1, request_id='request-1'" in said
    assert "seq SERIAL" in said
    assert "state         'runs'" in said
    assert "state         'held'" in said
    assert "holders       (1,)" in said
    assert "runs: 1\nwaits: nobody" in said
    assert "no sequence 7 is live" in said
    assert "identical: " in said


def test_stepping_ends_where_one_leaves_and_runs_on_where_the_input_ends(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    assert main(["replay", str(recording), "--step"]) == 0
    assert "identical: 0 messages, 0 steps, 0 turns" in capsys.readouterr().out

    def end(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    assert main(["replay", str(recording), "--step"]) == 0
    assert " 15 steps" in capsys.readouterr().out
