"""The timeline of a recording: in the form that Perfetto opens, and true to what happened."""

import asyncio
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepahead import SamplingParams
from stepahead.actors.recording import read_recording, timeline_of
from stepahead.actors.story.timeline import DEVICE
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.main import main
from stepahead.messages import StepPlan

from .engines import make_engine

PHASES = {"X", "b", "e", "s", "f", "C", "M"}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five requests of two classes in a pool that is too small for them."""
    path = tmp_path_factory.mktemp("timeline") / "recording"

    async def scenario() -> None:
        async with make_engine(record=path, num_blocks=16, max_num_seqs=3) as engine:
            asked = [
                engine.generate(
                    [*range(1, 12 + 3 * number)],
                    SamplingParams(max_tokens=12, ignore_eos=True),
                    request_id=f"r{number}",
                    priority=-(number % 2),
                )
                for number in range(5)
            ]
            await asyncio.gather(*asked)

    run_virtual(scenario())
    return path


@pytest.fixture(scope="module")
def events(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("trace") / "trace.json"
    assert main(["trace", str(recording), "--out", str(out)]) == 0
    said = json.loads(out.read_text())
    assert said["displayTimeUnit"] == "ms"
    return list(said["traceEvents"])


def test_every_event_has_what_its_kind_needs(events: list[dict[str, Any]]) -> None:
    for event in events:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] in "besf":
            assert "id" in event
            assert "cat" in event
        if event["ph"] == "C":
            assert all(type(value) is int for value in event["args"].values())


def test_slices_of_a_track_do_not_overlap(events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["dur"] > 0:
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        for (_, end), (begin, _) in pairwise(sorted(spans)):
            assert begin >= end - 1e-6


def test_there_is_a_named_track_for_every_actor_slot_and_the_device(
    events: list[dict[str, Any]],
) -> None:
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}

    actors = {"intake", "scheduler", "kvpool", "executor", "detokenizer", "log"}
    assert names >= actors | {DEVICE, "slot 0", "slot 1", "slot 2"}
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= threads


def test_an_arrow_leads_from_every_request_to_the_slice_of_the_step_that_ran_it_first(
    events: list[dict[str, Any]],
) -> None:
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    slices = {(e["pid"], e["tid"], e["ts"]): e for e in events if e["ph"] == "X"}

    assert set(starts) == set(ends) == {1, 2, 3, 4, 5}
    for serial, end in ends.items():
        assert starts[serial]["ts"] <= end["ts"]
        name = slices[end["pid"], end["tid"], end["ts"]]["name"]
        assert name == f"r{serial - 1}"
        assert (starts[serial]["pid"], starts[serial]["tid"], starts[serial]["ts"]) in slices


def test_counters_tell_queue_blocks_and_batch_tokens(events: list[dict[str, Any]]) -> None:
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append(event["args"][event["name"]])

    assert set(counters) == {"waiting", "running", "free blocks", "batch tokens"}
    assert max(counters["waiting"]) >= 2
    assert counters["waiting"][-1] == counters["running"][-1] == 0
    assert max(counters["running"]) == 3
    assert min(counters["free blocks"]) < 8


def test_the_device_track_has_every_step_once_in_order(recording: Path) -> None:
    read = read_recording(recording)
    plans = [
        e.message for _, t in read.turns for e in t.envelopes if isinstance(e.message, StepPlan)
    ]

    steps = [span for span in timeline_of(read).spans if span.track == DEVICE]

    assert [span.name for span in steps] == [f"step {plan.step}" for plan in plans]
    assert [span.about["tokens"] for span in steps] == [plan.num_tokens for plan in plans]
    assert all(one.end_ns <= other.begin_ns for one, other in pairwise(steps))


def test_who_waits_is_drawn_between_begin_and_end(events: list[dict[str, Any]]) -> None:
    begun = {event["id"]: event for event in events if event["ph"] == "b"}
    ended = {event["id"]: event for event in events if event["ph"] == "e"}

    assert begun
    assert set(begun) == set(ended)
    assert all(begun[number]["ts"] < ended[number]["ts"] for number in begun)


def test_the_same_timeline_is_drawn_as_a_picture(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.svg"

    assert main(["trace", str(recording), "--out", str(out)]) == 0

    picture = out.read_text()
    assert picture.startswith("<svg ")
    assert picture.count("<rect") > 40
    assert "slot 2" in picture


def test_another_format_is_a_mistake(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(recording), "--out", str(tmp_path / "trace.png")]) == 2

    assert "writes .json or .svg, not .png" in capsys.readouterr().err
