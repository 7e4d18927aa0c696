"""`engine-cli simulate` as a user meets it."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from stepahead.cli.main import main

from .mistakes import the_mistake

SMALL = ["simulate", "--rate", "20", "--duration", "2", "--prompt-tokens", "10-40"]


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def test_the_tables_show_times_totals_and_occupancy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL) == 0

    lines = capsys.readouterr().out.splitlines()
    for head in ("requests", "throughput", "preemptions", "cache hits", "first token", "peak"):
        assert any(line.startswith(head) for line in lines), head
    assert ["ms", "p50", "p90", "p99", "mean"] in [line.split() for line in lines]
    assert any("blocks held" in line for line in lines)


def test_json_is_one_object_and_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--json") == 0
    first = capsys.readouterr().out
    assert run(*SMALL, "--json", "--seed", "0") == 0

    assert capsys.readouterr().out == first
    result = json.loads(first)
    assert result["finished"] == result["requests"] > 0
    assert set(result["ttft_s"]) == {"p50", "p90", "p99", "mean"}
    assert {"seconds", "running", "waiting", "blocks_held"} == set(result["occupancy"][0])


def test_a_trace_and_measured_step_times_come_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, steps = tmp_path / "trace.csv", tmp_path / "steps.json"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,10,3\n")
    steps.write_text("[[1, 0, 0.5]]")

    assert run("simulate", trace, "--step-times", steps, "--host-overhead", "0", "--json") == 0

    result = json.loads(capsys.readouterr().out)
    assert (result["ttft_s"]["p50"], result["seconds"]) == (0.5, 1.5)


def test_the_limits_are_the_engine_s(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--num-blocks", "40", "--block-size", "4", "--max-num-seqs", "2"]

    assert run(*SMALL, *limits, "--no-prefix-caching", "--steps-in-flight", "1", "--json") == 0

    result = json.loads(capsys.readouterr().out)
    assert (result["num_blocks"], result["peak_running"]) == (40, 2)


def test_the_picture_is_svg_with_three_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "occupancy.svg"

    assert run(*SMALL, "--picture", path) == 0

    drawing = ElementTree.parse(path).getroot()
    lines = [e for e in drawing.iter("{http://www.w3.org/2000/svg}path") if e.get("fill") == "none"]
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert len(lines) == 3
    assert {"running sequences", "waiting sequences", "seconds"} <= set(texts)
    assert capsys.readouterr().out.startswith("requests")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give a TRACE, or --rate to draw one"),
        (["--rate", "0"], "rate is 0.0"),
        (["--rate", "1", "--duration", "-1"], "duration is -1.0"),
        (["--rate", "1", "--prompt-tokens", "x"], "'x' is not N or N-M"),
        (["--rate", "1", "--output-tokens", "9-3"], "output_tokens is 9-3"),
        (["--rate", "1", "--picture", "a.png"], "--picture draws SVG, not .png"),
        (["--rate", "1", "--picture", "nowhere/a.svg"], "there is no folder nowhere"),
        (["--rate", "1", "--model-size", "70"], "h100 has 80 GB"),
        (["--rate", "1", "--model-size", "nan"], "the model size is nan"),
        (["--rate", "1", "--device", "tpu"], "'tpu'"),
        (["--rate", "1", "--host-overhead", "-1"], "the host overhead is -1 ms"),
        (["--rate", "1", "--steps-in-flight", "5"], "steps_in_flight is 5"),
        (["--rate", "1", "--block-size", "0"], "block_size is 0"),
        (["--rate", "1", "--step-times", "nowhere.json"], "cannot read nowhere.json"),
        (["nowhere.csv"], "cannot read nowhere.csv"),
        (["nowhere.csv", "--burst", "2"], "--burst draws a trace, and TRACE is one already"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_printed(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("simulate", *arguments) == 2

    assert complaint in the_mistake(capsys)


def test_a_bad_line_of_a_trace_is_named_and_nothing_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, picture = tmp_path / "trace.csv", tmp_path / "a.svg"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,10,3\n1,ten,3\n")

    assert run("simulate", trace, "--picture", picture) == 2

    said = capsys.readouterr()
    assert f"{trace}, line 3: prompt_tokens is 'ten'" in said.err
    assert said.out == ""
    assert not picture.exists()


def test_a_recorded_simulation_is_the_same_and_can_be_replayed_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording"
    words = (*SMALL, "--num-blocks", "40", "--json")
    assert run(*words) == 0
    plain = capsys.readouterr().out

    assert run(*words, "--record", path) == 0

    assert capsys.readouterr().out == plain
    assert run("replay", path) == 0
    assert capsys.readouterr().out.startswith("identical: ")
    assert run("explain", path, "3") == 0
    assert "finished: length" in capsys.readouterr().out


def test_a_recording_that_cannot_be_written_is_a_mistake_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL, "--record", tmp_path / "missing" / "recording") == 2

    assert "cannot record to" in capsys.readouterr().err
