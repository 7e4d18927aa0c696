"""One answer in a pipe: nothing but the answer on standard output, nothing else anywhere."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from .cli_process import COMMAND, DEADLINE, Terminal, environment, heed_interrupts, piped

SIMULATED = ("--device", "simulated", "--temperature", "0", "--max-tokens", "12")


def test_a_piped_question_gets_its_answer_and_nothing_else() -> None:
    done = piped("chat", *SIMULATED, stdin="Say hello\n")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n")
    assert len(done.stdout) > 1


def test_a_prompt_and_piped_text_are_one_question() -> None:
    both = piped("chat", "Summarise:", *SIMULATED, stdin="a long text\n")
    whole = piped("chat", "Summarise:\n\na long text", *SIMULATED)

    assert both.stdout == whole.stdout
    assert both.returncode == whole.returncode == 0


def test_the_system_prompt_reaches_the_model() -> None:
    plain = piped("chat", "Hi", *SIMULATED)
    told = piped("chat", "Hi", "--system", "Be brief.", *SIMULATED)

    assert plain.stdout != told.stdout
    assert told.returncode == 0


def test_generate_prints_the_continuation_or_one_json_object() -> None:
    text = piped("generate", "Once upon", *SIMULATED)
    piped_in = piped("generate", "-", *SIMULATED, stdin="Once upon\n")
    line = piped("generate", "Once upon", "--json", *SIMULATED)

    said = json.loads(line.stdout)
    assert line.stdout.count("\n") == 1
    assert text.stdout == piped_in.stdout == said["text"] + "\n"
    assert list(said) == [
        "text",
        "token_ids",
        "finish_reason",
        "stop_reason",
        "usage",
        "timings",
    ]
    assert said["usage"] == {
        "prompt_tokens": len("Once upon"),
        "completion_tokens": len(said["token_ids"]),
        "cached_tokens": 0,
    }
    assert list(said["timings"]) == [
        "queue_s",
        "ttft_s",
        "decode_s",
        "total_s",
        "preemptions",
        "gap_p50_s",
        "gap_p99_s",
    ]
    assert said["finish_reason"] in {"stop", "length"}


def test_a_chat_in_json_tells_its_events_line_by_line() -> None:
    done = piped("chat", "--json", "Hi", *SIMULATED)
    text = piped("chat", "Hi", *SIMULATED).stdout.removesuffix("\n")

    start, *deltas, end = [json.loads(line) for line in done.stdout.splitlines()]
    assert start == {"event": "start", "model": "simulated", "device": "simulated", "context": 8192}
    assert {delta["event"] for delta in deltas} == {"delta"}
    assert "".join(delta["text"] for delta in deltas) == end["text"] == text
    assert [token for delta in deltas for token in delta["token_ids"]] == end["token_ids"]
    assert (end["event"], end["finish_reason"]) == ("end", "length")
    assert end["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["x" * 100, "--max-model-len", "64"], "64"),
        (["x" * 100, "--num-blocks", "2"], "32"),
        (["x", "--temperature", "-0.5"], "temperature"),
    ],
)
def test_a_request_that_can_never_be_served_is_a_mistake(arguments: list[str], fault: str) -> None:
    done = piped("generate", "--device", "simulated", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert fault in done.stderr


def test_logs_go_to_standard_error_or_a_file_only_when_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "log"

    shown = piped("generate", "Hi", "--log", "info", *SIMULATED)
    filed = piped("generate", "Hi", "--log", str(log), *SIMULATED)

    events = [json.loads(line)["event"] for line in shown.stderr.splitlines()]
    assert events.count("request.finished") == 1
    assert filed.stderr == ""
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == events
    assert shown.stdout == filed.stdout


def test_a_reader_that_leaves_in_mid_answer_ends_the_command_quietly() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)

    done = subprocess.run(
        [*COMMAND, "generate", "Hi", *SIMULATED],
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=DEADLINE,
        check=False,
    )
    os.close(write_end)

    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupted_answer_exits_with_130_and_no_traceback() -> None:
    command = [*COMMAND, "generate", "Hi", "--device", "simulated", "--temperature", "0"]
    with subprocess.Popen(
        [*command, "--ignore-eos", "--max-tokens", "4000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)  # it has begun to answer
        process.send_signal(signal.SIGINT)
        process.stdout.read()

        assert process.stderr.read() == b""
        assert process.wait(DEADLINE) == 130


def test_an_answer_to_a_prompt_on_a_terminal_waits_for_no_input(tmp_path: Path) -> None:
    arguments = ("chat", "Hi", *SIMULATED)

    with Terminal(*arguments, env=environment(tmp_path, TERM="dumb")) as terminal:
        assert terminal.exit_code() == 0
        assert "\x1b" not in terminal.raw
        answer = piped(*arguments).stdout
        assert terminal.shown.splitlines()[0].startswith("loading")
        assert len(answer) > 1


def test_a_benchmark_in_a_pipe_prints_one_json_object_per_measurement() -> None:
    done = piped("bench", "--device", "simulated", "--runs", "1", "--requests", "3", "--json")

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["bench"] for line in lines] == ["single", "batch"]
    assert all(line["out_tok_s"]["median"] > 0 for line in lines)
    assert all(line["peak_memory_mb"] > 0 for line in lines)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_default_model_continues_a_sentence_in_sensible_english() -> None:
    options = ("--max-tokens", "16", "--temperature", "0", "--json")
    done = piped("generate", "The capital of France is", *options)

    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["text"].startswith(" Paris")
    assert said["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "cached_tokens": 0}
    assert said["finish_reason"] == "length"


def test_the_default_model_answers_a_piped_question() -> None:
    done = piped("chat", "--temperature", "0", stdin="What is the capital of France?\n")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout
    assert not [c for c in done.stdout if c < " " and c != "\n"]


def test_logprobs_are_in_the_json_object_and_below_a_plain_answer() -> None:
    asked = ("--logprobs", "2", "--logprob-token-ids", "256", "--prompt-logprobs", "0")
    line = piped("generate", "Once upon", "--json", *asked, *SIMULATED)
    plain = piped("generate", "Once upon", *asked, *SIMULATED)

    said = json.loads(line.stdout)
    own = [told["token_id"] for told in said["logprobs"]]
    assert own == said["token_ids"]
    assert all(len(told["top"]) == 2 for told in said["logprobs"])
    assert {told["asked"][0]["text"] for told in said["logprobs"]} == {"<eos>"}
    assert said["cumulative_logprob"] == pytest.approx(
        sum(told["logprob"] for told in said["logprobs"])
    )
    assert said["prompt_logprobs"][0] is None
    assert [told["text"] for told in said["prompt_logprobs"][1:]] == list("nce upon")
    answer, prompt_rows, answer_rows = plain.stdout.split("\n\n")
    assert answer == said["text"]
    assert len(prompt_rows.splitlines()) == 1 + len("Once upon")
    first = answer_rows.splitlines()[1]
    assert first.startswith(repr(said["logprobs"][0]["text"]))
    assert f"{said['logprobs'][0]['logprob']:.4f}" in first


def test_a_chat_tells_logprobs_in_its_events_and_below_a_plain_answer() -> None:
    asked = ("--logprobs", "1", "--prompt-logprobs", "0")
    lines = piped("chat", "Hi", "--json", *asked, *SIMULATED).stdout.splitlines()
    plain = piped("chat", "Hi", *asked, *SIMULATED).stdout

    *deltas, end = [json.loads(line) for line in lines][1:]
    told = [one for delta in deltas for one in delta["logprobs"]]
    assert [one["token_id"] for one in told] == end["token_ids"]
    assert end["logprobs"] == told
    assert len(end["prompt_logprobs"]) == end["usage"]["prompt_tokens"]
    answer, prompt_rows, answer_rows = plain.split("\n\n")
    assert answer == end["text"]
    assert len(prompt_rows.splitlines()) == 1 + end["usage"]["prompt_tokens"]
    assert answer_rows.splitlines()[1].startswith(repr(told[0]["text"]))


def test_each_of_several_answers_tells_its_own_logprobs() -> None:
    line = piped("generate", "Hi", "--json", "--logprobs", "0", "--n", "2", *SIMULATED).stdout

    for output in json.loads(line)["outputs"]:
        assert [one["token_id"] for one in output["logprobs"]] == output["token_ids"]
