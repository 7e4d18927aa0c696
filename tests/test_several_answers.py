"""n answers to one prompt: told apart, counted right, sharing what the prompt costs."""

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from stepahead import (
    Engine,
    EngineOverloaded,
    FinishReason,
    RequestFailed,
    RequestRejected,
    SamplingParams,
)
from stepahead.messages import Delta

from .engines import is_empty, make_config, make_device, make_engine, settle, virtual

PROMPT = list(range(40, 62))  # five blocks of four, and two tokens


def drawing_engine(**options: Any) -> Engine:
    device = make_device(make_config(**options), draws=True)
    return make_engine(device=device, **options)


@virtual
async def test_several_answers_with_a_seed_differ_and_come_again() -> None:
    """Field case 050."""
    params = SamplingParams(n=3, seed=1, temperature=8.0, max_tokens=12, ignore_eos=True)
    async with drawing_engine() as engine:
        first = await engine.generate(PROMPT, params)
        again = await engine.generate(PROMPT, params)
        alone = await engine.generate(PROMPT, replace(params, n=1))

    said = [output.token_ids for output in first.outputs]
    assert len(set(said)) == 3
    assert said == [output.token_ids for output in again.outputs]
    assert alone.token_ids == said[0]


@virtual
async def test_each_answer_keeps_its_own_ids_text_and_end() -> None:
    """Field cases 052 and 161: deltas by index, one last delta each, and counts that agree."""
    params = SamplingParams(n=4, seed=5, temperature=8.0, max_tokens=30, stop=("a", "b", "7"))
    deltas: dict[int, list[Delta]] = defaultdict(list)
    async with drawing_engine() as engine:
        async for delta in engine.stream(PROMPT, params):
            deltas[delta.index].append(delta)
            await settle(engine, len(deltas[0]) % 3)  # a slow reader gets several at once
        result = await engine.generate(PROMPT, params)
        await settle(engine, 5)
        assert is_empty(engine)

    assert sorted(deltas) == [0, 1, 2, 3]
    for output in result.outputs:
        own = deltas[output.index]
        assert "".join(delta.text for delta in own) == output.text
        assert tuple(i for delta in own for i in delta.token_ids) == output.token_ids
        assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == output.finish_reason
        assert own[-1].usage is not None
        assert own[-1].usage.completion_tokens == len(output.token_ids)
    assert result.usage.prompt_tokens == len(PROMPT)
    assert result.usage.completion_tokens == sum(len(o.token_ids) for o in result.outputs)


@virtual
async def test_siblings_share_the_blocks_of_their_prompt() -> None:
    async with drawing_engine() as engine:
        stream = engine.stream(PROMPT, SamplingParams(n=4, max_tokens=40, ignore_eos=True))
        await anext(stream)
        used = engine.stats().blocks_total - engine.stats().blocks_free
        cached = [d.usage.cached_tokens async for d in stream if d.usage is not None]
        await settle(engine)

    assert used <= 5 + 4 * 3  # the prompt's whole blocks once, and what each has of its own
    assert cached == [0, 20, 20, 20]


@virtual
async def test_giving_up_ends_all_answers() -> None:
    params = SamplingParams(n=3, max_tokens=200, ignore_eos=True)
    async with drawing_engine() as engine:
        stream = engine.stream(PROMPT, params, request_id="mine")
        await anext(stream)
        await engine.abort("mine")
        ends = [delta.finish_reason async for delta in stream if delta.finish_reason is not None]
        assert ends == [FinishReason.ABORT] * 3

        stream = engine.stream(PROMPT, params)
        await anext(stream)
        await stream.aclose()
        await settle(engine, 5)
        assert is_empty(engine)
        waiting = asyncio.ensure_future(engine.generate(PROMPT, params))
        await settle(engine, 3)
        waiting.cancel()
        await settle(engine, 5)
        assert is_empty(engine)


@virtual
async def test_answers_that_cannot_all_be_held_are_refused() -> None:
    async with drawing_engine(max_num_seqs=2, max_waiting=2) as engine:
        with pytest.raises(RequestRejected, match="n is 5; the engine holds 4 answers at once"):
            await engine.generate(PROMPT, SamplingParams(n=5))
        others = [
            asyncio.ensure_future(engine.generate(PROMPT, SamplingParams(n=2, max_tokens=9)))
            for _ in range(2)
        ]
        await settle(engine)
        with pytest.raises(EngineOverloaded):
            await engine.generate(PROMPT, SamplingParams(n=1))
        results = await asyncio.gather(*others)

    assert [len(result.outputs) for result in results] == [2, 2]


@virtual
async def test_an_answer_that_fails_fails_the_result() -> None:
    nothing = {token_id: float("-inf") for token_id in range(512)}
    async with drawing_engine() as engine:
        with pytest.raises(RequestFailed, match="no token is left"):
            await engine.generate(PROMPT, SamplingParams(n=2, logit_bias=nothing))
        await settle(engine)
        assert is_empty(engine)
