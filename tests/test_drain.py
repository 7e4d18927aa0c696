"""Draining: what is live finishes, what comes is refused, and nothing waits for ever."""

import asyncio
import math

import pytest

from stepahead import EngineDead, EngineOverloaded, FinishReason, RequestRejected, SamplingParams

from .engines import is_empty, make_engine, settle, virtual

TWENTY = SamplingParams(max_tokens=20, ignore_eos=True)  # 0.2 seconds, beside the prompt


@virtual
async def test_live_requests_finish_and_new_ones_are_refused() -> None:
    async with make_engine(max_num_seqs=2) as engine:
        live = [asyncio.create_task(engine.generate(str(i), TWENTY)) for i in range(6)]
        await settle(engine)
        draining = asyncio.create_task(engine.drain())
        await settle(engine)
        with pytest.raises(EngineOverloaded, match="draining") as refusal:
            await engine.generate("late", TWENTY)
        assert (await engine.health()).state == "draining"

        assert await draining
        assert all(task.done() for task in live)
        await settle(engine, steps=3)
        assert is_empty(engine)

    assert refusal.value.retry_after > 0
    assert all(len(task.result().token_ids) == 20 for task in live)


@virtual
async def test_an_idle_engine_is_drained_at_once() -> None:
    async with make_engine() as engine:
        assert await engine.drain(timeout=1e-9)
        assert await engine.drain(timeout=0)


@virtual
async def test_a_drain_without_time_only_looks() -> None:
    async with make_engine() as engine:
        live = asyncio.create_task(engine.generate("one", TWENTY))
        await settle(engine)

        assert not await engine.drain(timeout=0)
        await live
        assert await engine.drain(timeout=0)


@virtual
async def test_a_timeout_without_meaning_is_refused_and_nothing_is_drained() -> None:
    async with make_engine() as engine:
        for timeout in (-1, math.nan, "soon"):
            with pytest.raises(RequestRejected, match="timeout is"):
                await engine.drain(timeout)  # type: ignore[arg-type]  # on purpose

        assert (await engine.health()).state == "running"


@virtual
async def test_a_drain_that_takes_too_long_says_so_and_disturbs_nobody() -> None:
    async with make_engine() as engine:
        live = asyncio.create_task(engine.generate("one", TWENTY))
        await settle(engine)
        begun = asyncio.get_running_loop().time()

        assert not await engine.drain(timeout=0.05)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(0.05)
        assert await engine.drain()
        assert len((await live).token_ids) == 20


@virtual
async def test_an_engine_takes_requests_again_when_it_is_resumed() -> None:
    async with make_engine() as engine:
        await engine.drain()
        await engine.resume()

        assert (await engine.health()).state == "running"
        assert len((await engine.generate("one", TWENTY)).token_ids) == 20


@virtual
async def test_a_paused_engine_goes_on_when_it_is_drained() -> None:
    async with make_engine() as engine:
        live = asyncio.create_task(engine.generate("one", TWENTY))
        await settle(engine)
        await engine.pause()

        assert await engine.drain(timeout=1.0)
        assert (await live).finish_reason is FinishReason.LENGTH


@virtual
async def test_requests_that_are_given_up_do_not_hold_up_a_drain() -> None:
    async with make_engine(max_num_seqs=1) as engine:
        live = [asyncio.create_task(engine.generate(str(i), TWENTY)) for i in range(4)]
        await settle(engine)
        draining = asyncio.create_task(engine.drain())
        await settle(engine)
        for task in live:
            task.cancel()

        assert await draining
        await settle(engine, steps=3)
        assert is_empty(engine)


@virtual
async def test_closing_ends_a_drain() -> None:
    async with make_engine() as engine:
        live = asyncio.create_task(engine.generate("one", TWENTY))
        await settle(engine)
        draining = asyncio.create_task(engine.drain())
        await settle(engine)

    for task in (live, draining):
        with pytest.raises(EngineDead, match="closed"):
            await task


@virtual
async def test_a_stream_that_was_not_begun_is_no_live_request() -> None:
    """It begins when it is first awaited, and is refused then."""
    async with make_engine() as engine:
        stream = engine.stream("one", TWENTY)

        assert await engine.drain(timeout=1.0)
        with pytest.raises(EngineOverloaded):
            await anext(stream)
