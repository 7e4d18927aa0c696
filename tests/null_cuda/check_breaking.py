"""What becomes of engines whose GPU has no memory left, or breaks."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import torch

from stepahead import Engine, EngineDead, FinishReason, RequestFailed, SamplingParams

from .engines import call_soon, engine_on, open_named
from .gpu import break_down, counts, have_memory

SHORT = SamplingParams(max_tokens=5, ignore_eos=True)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    have_memory()
    device = open_named(
        "qwen3-0.6b", call_soon(), num_slots=64, max_num_batched_tokens=2048, graph_capture_s=0.0
    )
    async with engine_on(device, max_num_seqs=32) as engine:
        yield engine
    break_down(0)
    have_memory()


async def reasons(engine: Engine, count: int, trouble: asyncio.Event) -> list[FinishReason | None]:
    """How requests end that had begun to answer when the trouble came."""

    async def one(number: int) -> FinishReason | None:
        last = None
        params = SamplingParams(max_tokens=400, ignore_eos=True, temperature=1.0, logprobs=number)
        async for delta in engine.stream(list(range(5, 305 + number)), params):
            trouble.set()
            last = delta.finish_reason
        return last

    return await asyncio.gather(*map(one, range(count)))


async def test_requests_for_which_there_is_no_memory_fail_and_the_engine_goes_on(
    engine: Engine,
) -> None:
    began = asyncio.Event()
    asked = asyncio.create_task(reasons(engine, 4, began))
    await began.wait()
    torch.cuda.empty_cache()
    have_memory(counts().reserved)  # somebody else has the rest

    assert await asked == [FinishReason.ERROR] * 4
    have_memory()
    assert (await engine.generate([1, 2, 3], SHORT)).finish_reason is FinishReason.LENGTH


async def test_a_gpu_that_breaks_fails_every_request_then_the_engine_and_never_the_process(
    engine: Engine,
) -> None:
    began = asyncio.Event()
    asked = asyncio.create_task(reasons(engine, 4, began))
    await began.wait()
    break_down()

    assert await asked == [FinishReason.ERROR] * 4
    last = None
    for _ in range(9):
        with pytest.raises((RequestFailed, EngineDead), match="illegal memory access") as told:
            await engine.generate([1, 2, 3], SHORT)
        last = told.value
    assert isinstance(last, EngineDead)
    assert "the device failed 8 steps in a row" in str(last)
