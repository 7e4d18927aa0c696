"""What the benchmarks ask for: built in, or from a file whose every mistake is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepahead.cli.bench.workload import Shapes, Workload
from stepahead.cli.bench.workload_file import check_fit, read_workloads
from stepahead.cli.mistake import Mistake

SHAPES = Shapes(vocab_size=49152, longest=8192)


def request(*, prompt: int = 4, out: int = 2, first: int = 1) -> dict[str, Any]:
    return {"ids": list(range(first, first + prompt)), "out": out}


def workloads(runs: int = 2) -> dict[str, Any]:
    """A small file's content, as the scripts for other engines write it."""
    streams = [request(out=24), request(out=24), request(prompt=30)]
    return {
        "meta": {"seed": 1},
        "W1": [[request()] for _ in range(runs)],
        "W2": [[request(), request(out=3)] for _ in range(runs)],
        "W4": [streams for _ in range(runs)],
    }


def write(folder: Path, content: object) -> Path:
    path = folder / "workloads.json"
    path.write_text(json.dumps(content))
    return path


def total(workload: Workload) -> list[int]:
    return [len(job.prompt) + job.output_tokens for run in workload.runs for job in run]


def test_the_batch_has_the_same_lengths_in_every_run_and_new_ids() -> None:
    first, second = SHAPES.batch(2, 64).runs

    assert [len(job.prompt) for job in first] == [len(job.prompt) for job in second]
    assert all(a.prompt[:8] != b.prompt[:8] for a, b in zip(first, second, strict=True))
    assert first == SHAPES.batch(1, 64).runs[0]


def test_the_batch_asks_for_lengths_as_chats_have_them() -> None:
    jobs = SHAPES.batch(1, 64).runs[0]
    prompts, outputs = [len(j.prompt) for j in jobs], [j.output_tokens for j in jobs]

    assert 120 < sum(prompts) / 64 < 180
    assert 80 < sum(outputs) / 64 < 120
    assert min(prompts) >= 16
    assert max(prompts) <= 512
    assert min(outputs) >= 16
    assert max(outputs) <= 256


def test_the_requests_of_the_prefix_benchmark_begin_alike_within_a_run_only() -> None:
    first, second = SHAPES.prefix(2, 5).runs

    assert len({job.prompt[:512] for job in first}) == 1
    assert len({job.prompt[512:] for job in first}) == 5
    assert first[0].prompt[:512] != second[0].prompt[:512]


def test_the_long_prompt_of_the_interference_benchmark_comes_last() -> None:
    (jobs,) = SHAPES.interference(1).runs

    assert [len(job.prompt) for job in jobs] == [64] * 8 + [1900]


@pytest.mark.parametrize("longest", [2, 31, 64, 250])
def test_a_short_context_gets_shorter_requests(longest: int) -> None:
    shapes = Shapes(100, longest)

    for workload in (
        shapes.single(1),
        shapes.batch(1, 64),
        shapes.prefix(1, 3),
        shapes.interference(1),
    ):
        assert max(total(workload)) <= longest
        assert all(job.prompt and job.output_tokens for run in workload.runs for job in run)


def test_a_file_gives_what_it_holds_in_its_own_order_of_runs(tmp_path: Path) -> None:
    path = write(tmp_path, workloads())

    found = read_workloads(path, None, runs=1)

    assert [(w.name, w.kind, len(w.runs)) for w in found] == [
        ("W1", "stream", 2),
        ("W2", "batch", 2),
        ("W4", "interference", 2),
    ]
    assert found[1].runs[0][1].prompt == (1, 2, 3, 4)
    assert found[1].runs[0][1].output_tokens == 3


def test_only_what_was_asked_for_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, workloads() | {"W1": "damaged"})

    assert [workload.name for workload in read_workloads(path, ["W4", "W2"], runs=1)] == [
        "W4",
        "W2",
    ]


def change(*steps: str | int, to: object) -> dict[str, Any]:
    """The small file with one place changed."""
    content: Any = json.loads(json.dumps(workloads()))
    place = content
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = to
    return dict(content)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ([], "holds a list; workloads are a JSON object"),
        ({"meta": {}}, "has no workload; W1, W2, W3, W4 are known"),
        (change("W1", to={}), "W1 is {}; it must be a list of runs"),
        (change("W1", to=workloads(1)["W1"]), "W1 has 1 runs, one of them the warm-up"),
        (change("W2", 1, to=[]), "W2, run 1 is []; it must be a list of requests"),
        (change("W2", 1, 0, to=7), "W2, run 1, request 0 is 7; it must be an object"),
        (change("W2", 0, 1, "out", to=0), "W2, run 0, request 1: out is 0"),
        (change("W2", 0, 1, "out", to=True), "request 1: out is True"),
        (change("W2", 0, 1, "out", to=None), "request 1: out is missing"),
        (change("W2", 0, 1, "ids", to=None), "request 1: ids is missing; it must be a list"),
        (change("W2", 0, 1, "ids", 2, to=-1), "request 1: ids[2] is -1; it must be a token id"),
        (change("W2", 0, 1, "ids", 2, to=1.5), "ids[2] is 1.5"),
        (change("W2", 0, 1, "ids", 2, to=2**40), "ids[2] is 1099511627776"),
        (change("W1", 0, to=workloads()["W2"][0]), "W1, run 0 has 2 requests"),
        (change("W4", 1, to=workloads()["W1"][0]), "W4, run 1 has 1 request"),
        (change("W4", 1, 0, "out", to=19), "W4, run 1, request 0: out is 19; a stream"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(
    content: object, fault: str, tmp_path: Path
) -> None:
    path = write(tmp_path, content)

    with pytest.raises(Mistake) as raised:
        read_workloads(path, None, runs=1)

    assert fault in raised.value.message
    assert str(path) in raised.value.message


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b'{"W1": [\n  oops]}', "is not JSON (line 2, column 3"),
        (b"", "is not JSON (line 1, column 1"),
        (b'{"W1": "\xff"}', "is not UTF-8 text (byte 8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_json_is_named_with_its_line(data: bytes, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "workloads.json"
    path.write_bytes(data)

    with pytest.raises(Mistake, match="workloads") as raised:
        read_workloads(path, None, runs=1)

    assert fault in raised.value.message


@pytest.mark.parametrize(
    ("only", "fault"),
    [(["W5"], "--only names 'W5'; W1, W2, W3, W4 are known"), (["W3"], "has no W3")],
)
def test_a_workload_that_is_not_there_is_named(only: list[str], fault: str, tmp_path: Path) -> None:
    with pytest.raises(Mistake) as raised:
        read_workloads(write(tmp_path, workloads()), only, runs=1)

    assert fault in raised.value.message


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="No such file"):
        read_workloads(tmp_path / "absent", None, runs=1)


@pytest.mark.parametrize(
    ("vocab_size", "longest", "fault"),
    [
        (8, 100, "W4, run 0, request 2: token id 30 is not the model's; its ids are below 8"),
        (100, 31, "request 2: 30 prompt and 2 output tokens do not fit the engine's context of 31"),
    ],
)
def test_a_request_that_the_model_cannot_take_is_named(
    vocab_size: int, longest: int, fault: str, tmp_path: Path
) -> None:
    (workload,) = read_workloads(write(tmp_path, workloads()), ["W4"], runs=1)

    with pytest.raises(Mistake) as raised:
        check_fit(workload, vocab_size=vocab_size, longest=longest)

    assert fault in raised.value.message
