"""The command where whoever started it had closed a standard stream, or where a disk is full."""

import subprocess
import sys
from pathlib import Path

import pytest

from .cli_process import Terminal, environment

GENERATE = f"{sys.executable} -m stepahead generate hi --device simulated --max-tokens 3"


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_fault(redirection: str) -> None:
    done = run(f"{GENERATE} {redirection}")

    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_is_not_told_on_standard_output_where_standard_error_is_closed() -> None:
    done = run(f"{sys.executable} -m stepahead generate '' 2>&-")

    assert (done.returncode, done.stdout) == (2, "")


def test_a_full_disk_is_told_in_one_line() -> None:
    done = run(f"{GENERATE} >/dev/full")

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no space left" in done.stderr


def test_what_an_encoding_lacks_is_shown_as_a_question_mark(tmp_path: Path) -> None:
    env = environment(tmp_path, PYTHONIOENCODING="ascii")
    with Terminal("chat", "--device", "simulated", "--max-tokens", "3", env=env) as chat:
        chat.wait_for("\n>>>")
        chat.send("hello\r")
        chat.wait_for("3 tokens ? ")
        chat.wait_for("\n>>>")
        chat.send("\x04")

        assert chat.exit_code() == 0
