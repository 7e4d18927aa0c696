"""A long prompt is given up: who asks next waits for the steps that are posted, and no longer."""

import asyncio

import pytest

from stepahead import SamplingParams
from stepahead.actors.story import Story
from stepahead.actors.story.story import Chunk
from stepahead.actors.virtual_time import run_virtual

from .engines import make_engine, settle


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_a_question_after_a_stopped_long_prompt_is_computed_by_the_next_step_that_is_posted(
    steps_in_flight: int,
) -> None:
    async def scenario() -> tuple[int, Story]:
        async with make_engine(
            steps_in_flight=steps_in_flight, max_num_batched_tokens=16
        ) as engine:
            long = engine.stream(list(range(200)), request_id="long")
            reading = asyncio.ensure_future(anext(long))
            await settle(engine, 3)
            await engine.abort("long")
            await reading
            posted = engine._started.batcher.steps.posted
            params = SamplingParams(max_tokens=1)
            await engine.generate([1, 2, 3], params, request_id="next")
            return posted, await engine.explain("next")

    posted, story = run_virtual(scenario())

    assert [event.step for event in story.events if isinstance(event, Chunk)] == [posted + 1]
    assert story.end_ns - story.begin_ns <= (steps_in_flight + 1) * 10_000_000
