"""The story of a request: told from the messages alone, it accounts for all its time and tokens."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

from stepahead import Engine, RequestRejected, Result, SamplingParams
from stepahead.actors.recording import ring as ring_module
from stepahead.actors.recording.explaining import chronicle_of, explain_request
from stepahead.actors.recording.reading import Recording, read_recording
from stepahead.actors.story import Story, explain, tell
from stepahead.actors.story.story import (
    Cause,
    Chunk,
    GaveWay,
    Over,
    Phase,
    Stall,
    Started,
    Wait,
    Waited,
    WentOn,
)
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.main import main
from stepahead.gpu.oracle import Oracle
from stepahead.messages import PrefixEnd

from .engines import make_engine, settle
from .simulation.draw import draw_script
from .simulation.life import live

T = TypeVar("T")
STEP_NS = 10_000_000


def ask(
    engine: Engine, name: str, prompt: list[int], tokens: int = 5, priority: int = 0
) -> asyncio.Future[Result]:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return asyncio.ensure_future(
        engine.generate(prompt, params, request_id=name, priority=priority)
    )


def find(story: Story, kind: type[T]) -> list[T]:
    return [event for event in story.events if isinstance(event, kind)]


# Laws


@pytest.mark.parametrize("seed", range(12))
def test_times_add_up_to_the_whole_and_tokens_to_the_usage_in_the_roughest_lives(
    seed: int, tmp_path: Path
) -> None:
    live(draw_script(seed), record=tmp_path / "recording")
    recording = read_recording(tmp_path / "recording")
    chronicle = chronicle_of(recording)

    stories = [explain(chronicle, s, recording.header.setup.limits) for s in chronicle.requests]

    assert stories
    for story in stories:
        _check_times(story)
        _check_against_the_caller(story, recording)
        tell(story)
        json.dumps(story.fields())


def _check_times(story: Story) -> None:
    """No moment is missing, and none is told twice."""
    for earlier, later in pairwise(story.phases):
        assert earlier.end_ns == later.begin_ns
        assert earlier.phase != later.phase
    since_ns = story.begin_ns
    for event in story.events:
        if isinstance(event, GaveWay):
            since_ns = event.t_ns
        elif isinstance(event, Stall):
            _check_no_gap(event.causes, event.begin_ns, event.t_ns)
        elif isinstance(event, (Started, WentOn, Waited)):
            _check_no_gap(event.waits, since_ns, event.t_ns)


def _check_no_gap(waits: tuple[Wait, ...], begin_ns: int, end_ns: int) -> None:
    edges = [begin_ns, *(wait.end_ns for wait in waits)]
    assert [wait.begin_ns for wait in waits] == edges[:-1]
    assert edges[-1] == end_ns


def _check_against_the_caller(story: Story, recording: Recording) -> None:
    tokens = story.tokens
    finished = chronicle_of(recording).requests[story.serial].finished
    if tokens.completion:
        known = tokens.cached + tokens.computed + tokens.found_later
        assert known == tokens.prompt + tokens.completion - 1 + tokens.beyond
    if finished is None:
        return
    usage, timings = finished.usage, finished.timings
    assert (tokens.prompt, tokens.cached) == (usage.prompt_tokens, usage.cached_tokens)
    assert tokens.completion == usage.completion_tokens
    assert story.end_ns - story.begin_ns == round(timings.total_s * 1e9)
    assert story.seconds_in(Phase.QUEUE) == pytest.approx(timings.queue_s, abs=1e-9)
    assert len(find(story, GaveWay)) >= timings.preemptions
    assert [over.finish_reason for over in find(story, Over)] == [str(finished.finish_reason)]


# What is told


def test_who_waits_is_told_for_what() -> None:
    async def scenario() -> dict[str, Story]:
        async with make_engine(max_num_seqs=1, num_blocks=32) as engine:
            first = ask(engine, "first", [1, 2, 3], tokens=10)
            second = ask(engine, "second", [4, 5, 6])
            await asyncio.gather(first, second)
            return {name: await engine.explain(name) for name in ("first", "second")}

    stories = run_virtual(scenario())

    (started,) = find(stories["second"], Started)
    assert [wait.cause for wait in started.waits] == [Cause.SEAT]
    assert started.waits[0].detail == "1 of 1 taken"
    assert find(stories["first"], Started)[0].waits == ()
    assert "100.0 ms for a seat (1 of 1 taken)" in tell(stories["second"])


def test_who_waits_for_a_prefix_in_the_making_is_told_whose_it_is() -> None:
    async def scenario() -> dict[str, Story]:
        async with make_engine(max_num_batched_tokens=16) as engine:
            names = ("first", "second")
            asked = [ask(engine, name, [*range(1, 50), n]) for n, name in enumerate(names, 60)]
            await asyncio.gather(*asked)
            return {name: await engine.explain(name) for name in names}

    stories = run_virtual(scenario())

    (started,) = find(stories["second"], Started)
    assert started.cached_tokens == 48
    assert Cause.PREFIX in [wait.cause for wait in started.waits]
    assert "for a prefix that another request computed (behind first)" in tell(stories["second"])
    assert find(stories["first"], Started)[0].waits == ()


def test_where_a_prefix_diverged_and_who_ran_beside_each_chunk_is_told() -> None:
    async def scenario() -> Story:
        async with make_engine(max_num_batched_tokens=16) as engine:
            await ask(engine, "before", [*range(1, 30)])
            beside = ask(engine, "beside", [50, 51], tokens=9)
            await settle(engine)
            await ask(engine, "asked", [*range(1, 11), 99, *range(12, 45)])
            await beside
            return await engine.explain("asked")

    story = run_virtual(scenario())

    (started,) = find(story, Started)
    assert started.cached_tokens == 8
    assert started.account is not None
    assert (started.account.end, started.account.first_difference) == (PrefixEnd.NEW, 10)
    chunks = find(story, Chunk)
    assert [(chunk.start, chunk.length) for chunk in chunks] == [(8, 15), (23, 15), (38, 6)]
    assert {chunk.mates for chunk in chunks} == {("beside",)}
    assert "token 10 differs from the closest that is cached" in tell(story)


def test_who_took_the_blocks_of_a_victim_is_told_and_what_it_had_to_compute_again() -> None:
    async def scenario() -> Story:
        async with make_engine(num_blocks=8, watermark=0.0, prefix_caching=False) as engine:
            victim = ask(engine, "victim", [1, 2, 3, 4, 5], tokens=16, priority=1)
            await settle(engine, 5)
            taker = ask(engine, "taker", [*range(10, 26)], tokens=8)
            await asyncio.gather(victim, taker)
            return await engine.explain("victim")

    story = run_virtual(scenario())

    gave_way = find(story, GaveWay)
    assert gave_way[0].by == ("taker",)
    assert gave_way[0].why == "blocks were needed"
    went_on = find(story, WentOn)
    assert Cause.BLOCKS in {wait.cause for wait in went_on[-1].waits}
    assert story.tokens.recomputed > 0
    assert story.seconds_in(Phase.PREEMPTED) > 0
    assert "preempted by taker: blocks were needed" in tell(story)


def test_a_stall_is_told_with_its_cause() -> None:
    async def scenario() -> Story:
        async with make_engine(steps_in_flight=1) as engine:
            asked = ask(engine, "asked", [1, 2, 3], tokens=12)
            await settle(engine, 4)
            await engine.pause()
            await asyncio.sleep(0.2)
            await engine.resume()
            await asked
            return await engine.explain("asked")

    story = run_virtual(scenario())

    (stall,) = find(story, Stall)
    assert stall.t_ns - stall.begin_ns == pytest.approx(0.2e9, abs=2 * STEP_NS)
    longest = max(stall.causes, key=lambda cause: cause.end_ns - cause.begin_ns)
    assert longest.cause == Cause.PAUSE


def test_a_long_prompt_of_somebody_else_is_named_where_it_made_a_step_long() -> None:
    async def scenario() -> Story:
        async with make_engine(max_num_batched_tokens=64) as engine:
            asked = ask(engine, "asked", [1, 2, 3], tokens=8)
            await settle(engine, 3)
            await asyncio.gather(asked, ask(engine, "long", [*range(1, 60)]))
            return await engine.explain("asked", stall_s=0.001)

    told = tell(run_virtual(scenario()))

    assert "59 of them of long" in told


def test_a_live_request_is_told_up_to_now() -> None:
    async def scenario() -> Story:
        async with make_engine() as engine:
            asked = ask(engine, "asked", [1, 2, 3], tokens=50)
            await settle(engine, 5)
            story = await engine.explain("asked")
            await asked
            return story

    story = run_virtual(scenario())

    assert not story.is_over
    assert story.tokens.completion == 5
    assert "still live" in tell(story)
    assert tell(story).splitlines()[-1].endswith(" in flight")  # not past an end that is to come


def test_a_request_that_the_log_does_not_know_is_refused_in_a_sentence() -> None:
    async def scenario() -> None:
        async with make_engine() as engine:
            await ask(engine, "known", [1])
            await engine.explain("other")

    with pytest.raises(RequestRejected, match=r"nothing of a request 'other'; the last .* known"):
        run_virtual(scenario())


def test_an_old_request_of_which_the_beginning_was_dropped_says_so_and_its_time_adds_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring_module, "LEAST_MESSAGES", 40)
    monkeypatch.setattr(ring_module, "MOST_MESSAGES", 40)
    monkeypatch.setattr("stepahead.actors.recording.recorder.MOST_BYTES", 40_000)

    async def scenario() -> Recording:
        async with make_engine(num_blocks=300, max_model_len=256) as engine:
            asked = ask(engine, "asked", [1, 2, 3], tokens=200)
            for number in range(20):
                await ask(engine, f"short {number}", [4, 5, 6, number])
            await asked
            await ask(engine, "last", [4, 5, 6])
            return engine.recorder.flight.recording

    recording = run_virtual(scenario())

    assert recording.opening is not None
    assert len(recording.turns) < 500
    story = explain_request(recording, "asked")
    assert story.phases[0].phase == Phase.FORGOTTEN
    assert "the log reaches back" in tell(story)
    _check_times(story)
    assert story.end_ns - story.begin_ns == pytest.approx(200 * STEP_NS, rel=0.02)
    late = explain_request(recording, "last")
    _check_against_the_caller(late, recording)


# The command


def test_the_command_tells_a_story_of_a_recording_as_text_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording"

    async def scenario() -> None:
        async with make_engine(record=path, oracle=Oracle(eos_every=500)) as engine:
            await ask(engine, "asked", [1, 2, 3])

    run_virtual(scenario())

    assert main(["explain", str(path), "asked"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("asked (serial 1): 3 prompt tokens, 0 of them cached, 5 generated")
    assert "time: prefill 10.0 + decode 40.0 = 50.0 ms" in told
    assert main(["explain", str(path), "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [event["event"] for event in said["events"]] == [
        "Arrived",
        "Started",
        "Chunk",
        "FirstToken",
        "Over",
    ]
    assert main(["explain", str(path), "nobody"]) == 2
    assert "says nothing of a request 'nobody'" in capsys.readouterr().err
