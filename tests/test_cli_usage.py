"""Exit codes, mistakes, and what costs nothing: everything that needs no engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepahead import ConfigError, EngineDead, ModelError, __version__
from stepahead.cli import main as entry
from stepahead.cli.main import main

from .cli_process import COMMAND, Terminal, environment, piped
from .mistakes import the_mistake


def test_the_version_comes_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from stepahead.cli.main import main; main(['--version']); print(*sys.modules)"
    )

    said, modules = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()

    assert said == f"engine-cli {__version__}"
    assert not {"torch", "transformers", "numpy", "prompt_toolkit"} & set(modules.split())


def test_the_version_takes_less_than_0_3_seconds_of_processor_time() -> None:
    before = os.times()
    subprocess.check_call([*COMMAND, "--version"], stdout=subprocess.DEVNULL)
    after = os.times()

    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 0.3


def test_help_lists_only_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    listed = capsys.readouterr().out.partition("Commands:")[2].splitlines()
    names = [line.split()[0] for line in listed if line.strip()]
    assert {"chat", "generate", "bench", "models"} <= set(names)
    assert [main([name, "--help"]) for name in names] == [0] * len(names)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], "Missing command"),
        (["converse"], "No such command 'converse'"),
        (["chat", "--temprature", "1"], "--temprature"),
        (["generate"], "PROMPT"),
        (["generate", ""], "the prompt is empty"),
        (["generate", " \n"], "the prompt is empty"),
        (["chat", " "], "the prompt is empty"),
        (["chat", "x", "--tools", "/no/such/file"], "--tools /no/such/file cannot be read"),
        (["chat", "x", "--template-option", "thinking"], "it must be NAME=VALUE"),
        (["chat", "x", "--tool-format", "xml"], "'xml' is not one of"),
        (["generate", "x", "--max-tokens", "0"], "max_tokens is 0"),
        (["generate", "x", "--max-tokens", "many"], "'many' is not a valid integer"),
        (["generate", "x", "--temperature", "-1"], "temperature is -1.0"),
        (["generate", "x", "--temperature", "nan"], "temperature is nan"),
        (["chat", "x", "--top-p", "0"], "top_p is 0.0"),
        (["chat", "x", "--stop", ""], "a stop string is empty"),
        (["generate", "x", "--json-schema", "/no/such/file"], "cannot read /no/such/file"),
        (["chat", "x", "--regex", "a", "--choice", "b"], "--regex and --choice were given"),
        (["generate", "x", "--regex", ""], "regex is ''; it must be a text that is not empty"),
        (["generate", "x", "--num-blocks", "0"], "num_blocks is 0"),
        (["generate", "x", "--steps-in-flight", "9"], "steps_in_flight is 9"),
        (["generate", "x", "--device", "abacus"], "'abacus' is not one of"),
        (["generate", "x", "--log", "/no/such/folder/log"], "no log in '/no/such/folder/log'"),
        (["bench", "everything"], "'everything' is not one of"),
        (["bench", "--runs", "0"], "0 is not in the range"),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_exit_code_2(
    arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(arguments)

    assert code == 2
    assert fault in the_mistake(capsys)


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (ConfigError("two things\ncontradict each other"), 2, 1),
        (ModelError("no such model"), 2, 1),
        (EngineDead("an actor failed"), 1, None),
        (ZeroDivisionError("unexpected"), 1, None),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_the_exit_code_tells_mistakes_faults_and_interruptions_apart(
    error: BaseException,
    code: int,
    lines: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(entry.engine_cli, "main", fail)

    assert main([]) == code
    said = capsys.readouterr().err
    assert lines is None or said.count("\n") == lines
    assert ("Traceback" in said) is (code == 1)


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [(["chat"], ""), (["chat", "--json"], "\n"), (["generate", "-"], " \n")],
)
def test_empty_input_ends_well_without_loading_a_model(arguments: list[str], stdin: str) -> None:
    done = piped(*arguments, "--model", "no-such-model", stdin=stdin)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_input_at_all_ends_well_without_loading_a_model() -> None:
    with open(os.devnull) as nothing:
        from_null = piped("chat", "--model", "no-such-model", stdin=nothing.fileno())
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "chat", "--model", "no-such-model"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (from_null.returncode, from_null.stdout, from_null.stderr) == (0, "", "")
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")


def test_input_that_is_not_text_is_a_mistake() -> None:
    done = piped("chat", stdin=b"caf\xe9")

    assert done.returncode == 2
    assert done.stderr == "engine-cli: standard input is not UTF-8 text (byte 3 does not fit)\n"


def test_an_unknown_model_is_a_mistake_that_names_what_would_be_right() -> None:
    done = piped("generate", "x", "--model", "no-such-model")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "no-such-model" in done.stderr
    assert "smollm2-135m" in done.stderr


def test_models_are_listed_with_the_place_or_the_command_that_brings_them() -> None:
    table, lines = piped("models").stdout, piped("models", "--json").stdout

    model = json.loads(lines.splitlines()[0])
    assert model["name"] == "smollm2-135m"
    assert "smollm2-135m" in table
    assert (model["path"] or model["install"]) in table
    assert "\x1b" not in table


def test_json_needs_a_prompt_on_a_terminal(tmp_path: Path) -> None:
    with Terminal("chat", "--json", env=environment(tmp_path)) as terminal:
        assert terminal.exit_code() == 2
        assert "add a PROMPT" in terminal.shown


def test_a_reader_that_has_left_ends_the_command_quietly() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)

    done = subprocess.run(
        [*COMMAND, "models"], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write_end)

    assert (done.returncode, done.stderr) == (0, "")
