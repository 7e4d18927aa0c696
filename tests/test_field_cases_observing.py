"""Field cases M: what people met in logs, usage and metrics of other engines."""

import asyncio
import logging

import pytest

from stepahead import Engine, SamplingParams
from stepahead.actors.offload import offload_to_thread
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle
from stepahead.messages import Delta

from .engines import make_engine


async def collect(engine: Engine, prompt: str, params: SamplingParams) -> list[Delta]:
    return [delta async for delta in engine.stream(prompt, params)]


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_a_line_of_the_program_is_logged_once_however_the_engine_was_started() -> None:
    """Field case 157."""
    handler, root = Lines(), logging.getLogger()
    before, level = list(root.handlers), root.level
    root.addHandler(handler)

    async def scenario() -> None:
        async with make_engine() as engine:
            await engine.generate("x", SamplingParams(max_tokens=3))
            logging.getLogger("program").warning("a line of the program")

    try:
        run_virtual(scenario())
    finally:
        root.removeHandler(handler)

    assert handler.lines == ["a line of the program"]
    assert (list(root.handlers), root.level) == (before, level)


def test_nothing_is_written_(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Field case 158."""

    async def scenario() -> None:
        async with make_engine(offload=offload_to_thread) as engine:
            await engine.generate("x" * 200, SamplingParams(max_tokens=3))

    asyncio.run(scenario())

    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_what_a_preempted_sequence_computes_or_finds_again_is_no_hit_of_the_prefix_cache(
    prefix_caching: bool,
) -> None:
    """Field case 160."""

    async def scenario() -> None:
        async with make_engine(
            num_blocks=10, watermark=0.0, prefix_caching=prefix_caching
        ) as engine:
            registry = engine.export_metrics()
            params = SamplingParams(max_tokens=20, ignore_eos=True)
            results = await asyncio.gather(
                *(engine.generate([50 * n + i for i in range(1, 9)], params) for n in range(4))
            )
            labels = {"model": "oracle"}
            assert engine.stats().preemptions > 0
            assert all(result.usage.cached_tokens == 0 for result in results)
            assert registry.get_sample_value("engine_cached_prompt_tokens_total", labels) == 0
            again = registry.get_sample_value("engine_recomputed_tokens_total", labels)
            assert again is not None
            assert again > 0

    run_virtual(scenario())


@pytest.mark.parametrize("stop", [(), ("b",), ("ab", "cd"), ("never",)])
def test_usage_of_a_stream_is_that_of_the_whole_answer_and_the_number_of_its_ids(
    stop: tuple[str, ...],
) -> None:
    """Field case 161."""

    async def scenario() -> None:
        async with make_engine(oracle=Oracle(eos_every=40)) as engine:
            for seed in range(12):
                params = SamplingParams(max_tokens=30, stop=stop, seed=seed)
                prompt = f"a prompt of {seed}"
                deltas = await collect(engine, prompt, params)
                result = await engine.generate(prompt, params)
                ids = [token_id for delta in deltas for token_id in delta.token_ids]
                usage = deltas[-1].usage
                assert usage is not None
                assert usage.completion_tokens == result.usage.completion_tokens == len(ids)
                assert len(ids) == len(result.token_ids)
                assert usage.prompt_tokens == result.usage.prompt_tokens == len(prompt)

    run_virtual(scenario())


@pytest.mark.parametrize("max_tokens", [1, 2, 20])
def test_exactly_one_delta_tells_usage_and_it_is_the_last(max_tokens: int) -> None:
    """Field case 163."""

    async def scenario() -> None:
        async with make_engine() as engine:
            deltas = await collect(engine, "a prompt", SamplingParams(max_tokens=max_tokens))
            assert [delta.usage is not None for delta in deltas] == [
                *(False for _ in deltas[1:]),
                True,
            ]
            assert [delta.timings is not None for delta in deltas][-1]

    run_virtual(scenario())


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_blocks_in_use_return_to_none_after_many_requests_though_their_content_stays_cached(
    prefix_caching: bool,
) -> None:
    """Field case 164."""

    async def scenario() -> None:
        async with make_engine(prefix_caching=prefix_caching) as engine:
            registry = engine.export_metrics()
            labels = {"model": "oracle"}

            def used() -> float:
                return registry.get_sample_value("engine_kv_blocks_used_ratio", labels) or 0.0

            params = SamplingParams(max_tokens=5)
            calls = [engine.generate(f"prompt number {n}", params) for n in range(100)]
            waiting = asyncio.gather(*calls)
            await asyncio.sleep(0.02)
            assert used() > 0
            await waiting
            await asyncio.sleep(0.05)
            assert used() == 0
            assert (engine.stats().blocks_cached > 0) == prefix_caching

    run_virtual(scenario())
