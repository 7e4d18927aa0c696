"""`engine-cli bench` from end to end on the simulated device, and what its numbers mean."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepahead.cli.bench.comparison import ratio
from stepahead.cli.bench.measurement import Measurement
from stepahead.cli.bench.measures import of_batch, of_interference, of_stream
from stepahead.cli.bench.options import LoadOptions
from stepahead.cli.bench.serve_load import of_served
from stepahead.cli.bench.traces import Run, Trace
from stepahead.cli.main import main
from stepahead.cli.mistake import Mistake

from .cli_process import piped
from .mistakes import the_mistake

SIMULATED = ("--device", "simulated", "--runs", "2", "--json")


def trace(sent: float, *at: float) -> Trace:
    return Trace(sent, list(at), list(range(len(at))))


def workload_file(folder: Path) -> Path:
    """All four workloads, small; the last request of W4 is the long one."""

    def request(*ids: int, out: int = 6) -> dict[str, Any]:
        return {"ids": ids, "out": out}

    stream, long = request(9, 8, 7, out=40), request(*range(50), out=3)
    content = {
        "W1": [[request(run, 2, 3)] for run in range(3)],
        "W2": [[request(run, 4), request(run, 5, 6, out=9)] for run in range(3)],
        "W3": [[request(run, *range(20), own) for own in range(3)] for run in range(3)],
        "W4": [[stream, stream, long] for _ in range(3)],
    }
    path = folder / "workloads.json"
    path.write_text(json.dumps(content))
    return path


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def medians(line: dict[str, Any], names: Sequence[str]) -> list[float]:
    return [line[name]["median"] for name in names]


def test_a_single_stream_is_fast_after_its_first_token() -> None:
    run = Run(4.0, [trace(10.0, 11.0, 12.0, 14.0)])

    assert of_stream(run) == {"ttft_ms": 1000, "decode_tok_s": 2 / 3, "out_tok_s": 3 / 4}


def test_tokens_that_came_at_once_have_no_speed_of_their_own() -> None:
    assert "decode_tok_s" not in of_stream(Run(1.0, [trace(0.0, 0.5, 0.5)]))


def test_a_batch_counts_all_tokens_over_the_whole_time() -> None:
    run = Run(2.0, [trace(0.0, 0.25, 2.0), trace(0.0, 0.75, 1.0, 1.5)])

    assert of_batch(run) == {
        "wall_s": 2.0,
        "out_tok_s": 2.5,
        "ttft_median_ms": 500,
        "ttft_max_ms": 750,
    }


def test_interference_is_the_longest_gap_of_a_stream_after_the_long_prompt_was_sent() -> None:
    streams = [
        trace(0.0, 1, 2, 3, 4, 5, 6, 7, 12, 13),  # 5 s without a token: the long prompt's work
        trace(0.0, 1, 2, 3, 4, 5.5, 6.5, 7.5, 9.5, 10),
    ]

    measured = of_interference([*streams, trace(8.0, 11.0)])

    assert measured == {
        "gap_before_median_ms": 1000,
        "gap_before_max_ms": 1000,
        "gap_after_max_ms": 5000,
        "long_ttft_ms": 3000,
        "short_left_at_send": 2,
    }


def test_interference_cannot_be_measured_when_no_stream_is_left() -> None:
    with pytest.raises(Mistake, match="nothing to measure"):
        of_interference([trace(0.0, 1, 2, 3, 4, 5, 6), trace(8.0, 9.0)])


def test_a_good_answer_begins_in_time_and_keeps_its_pace() -> None:
    load = LoadOptions(rate=1, duration=4, good_ttft=1000, good_itl=100)
    good, late, slow = trace(0, 0.9, 0.95), trace(0, 1.1, 1.15), trace(0, 0.5, 0.6, 0.8)

    measured = of_served([good, late, slow], 4, load, seconds=2.0)

    assert measured["requests_per_s"] == 1.5
    assert measured["goodput_per_s"] == 0.5
    assert measured["good_percent"] == 25
    assert measured["out_tok_s"] == 3.5
    assert measured["ttft_p50_ms"] == pytest.approx(900)


def test_when_nothing_was_served_nothing_was_good() -> None:
    load = LoadOptions(rate=1, duration=4, good_ttft=1000, good_itl=100)

    assert of_served([], 4, load, seconds=2.0)["good_percent"] == 0


def test_a_measurement_tells_median_and_range_of_what_every_run_showed() -> None:
    measured = Measurement("x", {"requests": 1}, [{"a": 3.0, "b": 1.0}, {"a": 1.0}, {"a": 2.0}])

    assert measured.line() == {
        "bench": "x",
        "requests": 1,
        "runs": 3,
        "a": {"median": 2.0, "min": 1.0, "max": 3.0},
    }


@pytest.mark.parametrize(
    ("name", "here", "there", "verdict"),
    [
        ("out_tok_s", 2.0, 1.0, "better"),
        ("goodput_per_s", 1.0, 2.0, "worse"),
        ("ttft_ms", 2.0, 1.0, "worse"),
        ("wall_s", 1.0, 2.0, "better"),
        ("requests", 1.0, 2.0, ""),
        ("wall_s", 1.0, 1.0, "equal"),
    ],
)
def test_a_ratio_says_which_is_better_by_the_unit(
    name: str, here: float, there: float, verdict: str
) -> None:
    line = ratio("W1", name, here, there)

    assert (line["ratio"], line["verdict"]) == (here / there, verdict)


def test_a_ratio_to_nothing_is_none() -> None:
    assert ratio("W1", "wall_s", 1.0, 0.0)["ratio"] is None


@pytest.mark.parametrize(
    ("what", "measures"),
    [
        ("single", ["ttft_ms", "decode_tok_s", "out_tok_s"]),
        ("batch", ["wall_s", "out_tok_s", "ttft_median_ms"]),
        ("prefix", ["wall_s", "out_tok_s", "ttft_median_ms"]),
        ("interference", ["gap_before_max_ms", "gap_after_max_ms", "long_ttft_ms"]),
    ],
)
def test_each_benchmark_of_the_engine_reports_its_measures(
    what: str, measures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", what, "--requests", "4", *SIMULATED]) == 0

    (line,) = lines(capsys)
    assert (line["bench"], line["runs"], line["device"]) == (what, 2, "simulated")
    assert min(medians(line, measures)) > 0


def test_serving_under_load_reports_what_came_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--rate", "40", "--duration", "0.3", "--good-itl", "60000")
    assert main(["bench", "serve-load", *options, *SIMULATED]) == 0

    (line,) = lines(capsys)
    assert (line["bench"], line["rate"], line["duration"]) == ("serve-load", 40, 0.3)
    assert line["requests"]["min"] >= 1
    assert line["refused"]["max"] == 0
    assert 0 < line["ttft_p50_ms"]["median"] <= line["ttft_p99_ms"]["median"]
    assert line["goodput_per_s"]["median"] > 0


def test_a_file_of_workloads_gives_results_that_compare_with_a_later_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = str(workload_file(tmp_path)), tmp_path / "out.json"

    assert main(["bench", "--workloads", file, "--out", str(out), *SIMULATED]) == 0
    shown = lines(capsys)
    again = ("--only", "W4,W1", "--compare", str(out))
    assert main(["bench", "--workloads", file, *again, *SIMULATED]) == 0
    compared = [line for line in lines(capsys) if "compared" in line]

    assert [line["bench"] for line in shown] == ["start", "W1", "W2", "W3", "W4"]
    results = json.loads(out.read_text())
    assert results["engine"] == "stepahead"
    assert results["version"].startswith("stepahead ")
    assert [len(results["W2"]["runs"]), results["W2"]["warm_up"]["wall_s"] > 0] == [2, True]
    assert results["W2"]["out_tok_s"] == shown[2]["out_tok_s"]
    lengths = [[len(ids) for ids in run] for run in results["outputs"]["W2"]]
    assert lengths == [[6, 9]] * 3
    assert {line["compared"] for line in compared} - {"start"} == {"W4", "W1"}
    there = next(line for line in compared if line["measure"] == "decode_tok_s")["there"]
    assert there == results["W1"]["decode_tok_s"]["median"]


def test_two_runs_of_a_file_give_the_same_tokens(tmp_path: Path) -> None:
    file = str(workload_file(tmp_path))
    outs = [tmp_path / "first.json", tmp_path / "second.json"]

    for out in outs:
        assert main(["bench", "--workloads", file, "--out", str(out), *SIMULATED]) == 0

    first, second = (json.loads(out.read_text())["outputs"] for out in outs)
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--workloads", "absent.json"], "no workloads in 'absent.json' (No such file"),
        (["--workloads", "broken.json"], "broken.json is not JSON (line 1, column 2"),
        (["single", "--compare", "broken.json"], "broken.json is not JSON"),
        (["single", "--compare", "empty.json"], "empty.json has no results"),
        (["single", "--out", "/no/such/folder/x"], "no results to '/no/such/folder/x'"),
        (["single", "--workloads", "empty.json"], "leave out single"),
        (["--only", "W1"], "--only chooses from a file"),
        (["serve-load", "--rate", "0"], "0.0 is not in the range"),
        (["serve-load", "--rate", "1e9"], "rate is 1000000000.0"),
        (["interference", "--max-model-len", "24"], "too few to decode"),
    ],
)
def test_a_mistake_comes_before_anything_is_measured(
    arguments: list[str],
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    Path("empty.json").write_text("{}")

    assert main(["bench", *arguments, "--device", "simulated"]) == 2

    assert fault in the_mistake(capsys)


def test_a_start_is_measured_in_processes_of_their_own() -> None:
    done = piped("bench", "startup", "--device", "simulated", "--runs", "1", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    line = json.loads(done.stdout)
    assert line["import_torch_s"]["median"] == 0  # the simulated device needs none
    points = medians(line, ["command_s", "ready_s", "first_token_s"])
    assert 0 < points[0] < points[1] < points[2]
    assert 0 < line["first_answer_s"]["median"] <= line["exit_s"]["median"]


def test_a_start_that_fails_says_why() -> None:
    done = piped("bench", "startup", "--model", "no-such-model", "--runs", "1")

    assert done.returncode == 2
    assert "model 'no-such-model' is not a file or folder here" in done.stderr


def test_a_small_workload_runs_on_the_default_model(tmp_path: Path) -> None:
    content = {"W1": [[{"ids": [504, 3575, run], "out": 2}] for run in (5, 6)]}
    file, out = tmp_path / "workloads.json", tmp_path / "out.json"
    file.write_text(json.dumps(content))

    done = piped("bench", "--workloads", str(file), "--runs", "1", "--json", "--out", str(out))

    assert (done.returncode, done.stderr) == (0, "")
    start, line = (json.loads(text) for text in done.stdout.splitlines())
    assert start["first_answer_s"] > start["load_s"] > 0
    assert line["device"] == "cpu"
    assert line["out_tok_s"]["median"] > 0
    assert [len(ids) for ids in json.loads(out.read_text())["outputs"]["W1"][1]] == [2]


def test_transformers_computes_in_a_dtype_it_knows_beside_quantised_weights() -> None:
    from stepahead.cli.bench.transformers import _dtype_of

    assert _dtype_of("float32") == "float32"
    assert _dtype_of("quantised") in ("float32", "bfloat16")
