"""Runs requests on an engine, and how long all of them together take."""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...messages import Result, SamplingParams
from ..engine import Engine
from .requests import Asked, equal, num_outputs

TEMPERATURE = 0.6  # what nano-vllm's benchmark draws at


@dataclass(frozen=True, slots=True)
class Served:
    """What came of requests that were made at once."""

    seconds: float
    cpu_s: float  # of the whole process
    num_tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


async def serve(
    engine: Engine, asked: Sequence[Asked], *, temperature: float = TEMPERATURE
) -> Served:
    """All at once, each to its full length. Raises RuntimeError where tokens are missing."""
    began, began_cpu = time.perf_counter(), time.process_time()
    results = await asyncio.gather(
        *(engine.generate(one.prompt, params_of(one, temperature)) for one in asked)
    )
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    num_tokens = sum(len(output.token_ids) for result in results for output in result.outputs)
    if num_tokens != num_outputs(asked):
        raise RuntimeError(f"{num_tokens} tokens came, and {num_outputs(asked)} were asked for")
    return Served(seconds, cpu_s, num_tokens)


async def warm_up(engine: Engine, longest: int) -> None:
    """Prompts long and short and some rows, so that every kernel is there; what was made until
    then is never looked at by the collector again."""
    vocab = engine.facts.vocab_size
    for prompt in (longest, longest // 3 + 1, 2):
        await serve(engine, equal(3, prompt, 4, vocab, seed=prompt))
    gc.collect()
    gc.freeze()


async def ask(engine: Engine, prompt: Sequence[int], output: int) -> Result:
    """One request, greedily."""
    return await engine.generate(prompt, params_of(Asked(tuple(prompt), output), 0.0))


async def follow(engine: Engine, one: Asked, came: Callable[[int], None]) -> None:
    """One request; `came` is told of every piece how many tokens there are by then."""
    count = 0
    async for delta in engine.stream(one.prompt, params_of(one, TEMPERATURE)):
        count += len(delta.token_ids)
        came(count)


def params_of(one: Asked, temperature: float) -> SamplingParams:
    return SamplingParams(
        max_tokens=one.output,
        n=one.answers,
        temperature=temperature,
        ignore_eos=True,
        detokenize=False,
    )
