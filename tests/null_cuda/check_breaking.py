"""What becomes of engines whose GPU has no memory left, or breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from stepahead import Engine, EngineDead, FinishReason, RequestFailed, SamplingParams
from stepahead.gpu.cuda.graphs import CudaCapture

from .engines import call_soon, engine_on, open_named
from .gpu import MEMORY, break_down, counts, have_memory

SHORT = SamplingParams(max_tokens=5, ignore_eos=True)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Engine]:
    have_memory()
    device = open_named(
        "qwen3-0.6b", call_soon(), num_slots=64, max_num_batched_tokens=2048, **options
    )
    async with engine_on(device, max_num_seqs=32) as engine:
        yield engine
    break_down(0)
    have_memory()


@pytest.fixture(params=[0.0, 30.0], ids=["", "graphs"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    async with serving(graph_capture_s=request.param) as engine:
        yield engine


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


@pytest.mark.parametrize("number", [1, 5, 8, 16, 23])
async def test_a_graph_for_which_there_is_no_memory_is_the_last_and_the_rest_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """Seven compute up to 32 rows, seven sample them, seven do so among the likeliest, and five
    compute rows that share blocks."""
    captured = 0

    def capture(self: CudaCapture, run: Callable[[], None]) -> Callable[[], None]:
        nonlocal captured
        captured += 1
        if captured < number:
            return capture_one(self, run)

        def too_much() -> None:
            run()
            torch.empty(MEMORY, dtype=torch.uint8, device="cuda")

        return capture_one(self, too_much)

    capture_one = CudaCapture.capture
    monkeypatch.setattr(CudaCapture, "capture", capture)
    with caplog.at_level(logging.WARNING):
        async with serving() as engine:
            before = counts()
            asked = (engine.generate([number] * length, SHORT) for length in range(1, 30))
            answers = await asyncio.gather(*asked)
            after = counts()

    assert captured == number
    assert "decode graphs cannot be captured any further" in caplog.text
    assert {answer.finish_reason for answer in answers} == {FinishReason.LENGTH}
    assert (after.graph_launches > before.graph_launches) == (number > 1)
