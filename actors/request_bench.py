"""What building a request costs, and how late a very long one makes everybody else."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..gpu.device import DeviceFacts
from ..gpu.paced import PacedDevice
from ..messages import SamplingParams
from .backend import Backend
from .config import EngineConfig
from .engine import Engine
from .grammars import StructuredGrammars
from .intake import Intake
from .request_options import RequestOptions
from .streams import OutputStreams
from .text.toy import ToyTokenizer

T = TypeVar("T")

BLOCK_SIZE = 16
VOCABULARY = 50_000
STEP_S = 0.005
TICK_S = 0.001
COMPANY = 8  # short requests that run beside the long ones
LONG_ONES = 3  # at once; then the same again, which are found in the cache


async def build(num_tokens: int, requests: int) -> dict[str, Any]:
    """CPU microseconds from a list of token ids to the posted request."""
    intake = _intake(_facts(num_tokens + 16, num_blocks=num_tokens))
    params, options = SamplingParams(max_tokens=16), RequestOptions()
    rng = np.random.default_rng(0)
    times: list[int] = []
    for _ in range(requests):
        prompt = rng.integers(0, VOCABULARY, num_tokens).tolist()
        start = time.thread_time_ns()
        await intake.submit(prompt, params, options)
        times.append(time.thread_time_ns() - start)
    micros = np.array(times) / 1e3
    return {
        "prompt_tokens": num_tokens,
        "requests": requests,
        "us_per_request": round(float(micros.mean()), 1),
        "p50": round(float(np.percentile(micros, 50)), 1),
        "p99": round(float(np.percentile(micros, 99)), 1),
    }


async def lag(num_tokens: int) -> dict[str, Any]:
    """How late the event loop is, in milliseconds, while long prompts come, run and end."""
    facts = _facts(num_tokens + BLOCK_SIZE, num_blocks=8 * num_tokens // BLOCK_SIZE)
    config = EngineConfig(device="simulated", block_size=BLOCK_SIZE)
    device = PacedDevice(facts, STEP_S, asyncio.get_running_loop().call_soon_threadsafe)
    backend = Backend(device, ToyTokenizer(VOCABULARY), SamplingParams())
    lags: list[float] = []
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, num_tokens).tolist() for _ in range(LONG_ONES)]
    async with Engine(config, backend=backend) as engine:
        company = [
            asyncio.create_task(_generate(engine, [serial] * 100, num_tokens // 2))
            for serial in range(COMPANY)
        ]
        ticking = asyncio.create_task(_tick(lags))
        found = 0
        for _ in range(2):
            results = await asyncio.gather(*(_generate(engine, p, 8) for p in prompts))
            found = sum(result.usage.cached_tokens for result in results)
        for task in (ticking, *company):
            task.cancel()
        await asyncio.gather(ticking, *company, return_exceptions=True)
    late = np.array(lags) * 1e3
    return {
        "prompt_tokens": num_tokens,
        "requests": 2 * LONG_ONES,
        "cached_tokens": found,
        "seconds": round(len(lags) * TICK_S + float(late.sum()) / 1e3, 2),
        "lag_ms_mean": round(float(late.mean()), 2),
        "p99": round(float(np.percentile(late, 99)), 2),
        "max": round(float(late.max()), 2),
    }


async def _tick(lags: list[float]) -> None:
    while True:
        start = time.perf_counter()
        await asyncio.sleep(TICK_S)
        lags.append(max(time.perf_counter() - start - TICK_S, 0.0))


async def _generate(engine: Engine, prompt: list[int], max_tokens: int) -> Any:
    return await engine.generate(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def _facts(max_model_len: int, num_blocks: int) -> DeviceFacts:
    return DeviceFacts(
        model="paced",
        device="simulated",
        dtype="none",
        vocab_size=VOCABULARY,
        max_model_len=max_model_len,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        eos_token_ids=frozenset({2}),
    )


def _intake(facts: DeviceFacts) -> Intake:
    """An Intake whose requests go nowhere."""

    async def inline(function: Callable[[], T]) -> T:
        return function()

    tokenizer = ToyTokenizer(VOCABULARY)
    return Intake(
        facts,
        tokenizer,
        OutputStreams(),
        max_live=2**31,
        max_logprobs=20,
        offload=inline,
        clock=time.monotonic_ns,
        grammars=StructuredGrammars(
            tokenizer, vocab_size=VOCABULARY, eos_token_ids=facts.eos_token_ids, offload=inline
        ),
        scheduler=_nowhere,
        detokenizer=_nowhere,
    )


def _nowhere(message: object) -> None:
    """Nobody hears it."""
