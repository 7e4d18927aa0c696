"""The whole engine on the CUDA device's code says what it says on the processor's device."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepahead import Result, SamplingParams, StructuredOutput
from stepahead.messages import EngineDead, Generate, Ints, RequestFailed

from .engines import is_empty
from .paged_devices import OpaqueOps, ThreadStreams, one_thread  # noqa: F401
from .paged_engines import ids_of, make_engine_folder, prompts, running, say, ways

Said = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_engine_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> Said:
    """On the processor, one after the other in a roomy pool."""

    async def run() -> Said:
        async with running(folder, is_paged=False, prefix_caching=False) as engine:
            params = ways()
            return ids_of(
                [await engine.generate(prompt, params[n % 4]) for n, prompt in enumerate(prompts())]
            )

    return asyncio.run(run())


@pytest.mark.parametrize(
    "options",
    [
        {"steps_in_flight": 1},
        {"steps_in_flight": 2},
        {"steps_in_flight": 3, "max_num_batched_tokens": 9},
        {"steps_in_flight": 4, "long_prefill_token_threshold": 5},
    ],
)
async def test_it_says_what_it_says_on_the_processor(
    folder: Path, expected: Said, options: dict[str, Any]
) -> None:
    async with running(folder, **options) as engine:
        assert ids_of(await say(engine, prompts(), ways())) == expected
        assert is_empty(engine)


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
@pytest.mark.parametrize("host_blocks", [0, 64])
async def test_preempted_and_swapped_sequences_say_the_same(
    folder: Path, expected: Said, host_blocks: int, steps_in_flight: int
) -> None:
    async with running(
        folder,
        num_blocks=26,
        num_host_blocks=host_blocks,
        prefix_caching=False,
        steps_in_flight=steps_in_flight,
    ) as engine:
        results = await say(engine, prompts(), ways())
        stats = engine.stats()

        assert ids_of(results) == expected
        assert stats.preemptions > 0
        assert (stats.swaps > 0) == (host_blocks > 0)
        assert is_empty(engine)


@pytest.mark.parametrize("steps_in_flight", [2, 4])
async def test_cached_prefixes_change_nothing(folder: Path, steps_in_flight: int) -> None:
    asked = prompts(6, shared=13)
    said: list[Said] = []
    cached = 0
    for is_paged in (False, True):
        async with running(folder, is_paged=is_paged, steps_in_flight=steps_in_flight) as engine:
            for _ in range(2):
                results = await say(engine, asked, ways())
                said.append(ids_of(results))
            cached = sum(result.usage.cached_tokens for result in results)

    assert said[0] == said[1] == said[2] == said[3]
    assert cached >= 6 * 12


@pytest.mark.parametrize("steps_in_flight", [2, 3, 4])
async def test_an_answer_ends_where_it_ends_however_many_steps_are_ahead(
    folder: Path, expected: Said, steps_in_flight: int
) -> None:
    """Its end is found late, when its slot is in later steps already; others take the slot."""
    ends = [ids[min(n, len(ids) - 1)] for n, ids in enumerate(expected)]
    params = [
        replace(ways()[n % 4], stop_token_ids=(end,), ignore_eos=True) for n, end in enumerate(ends)
    ]
    async with running(folder, max_num_seqs=3, steps_in_flight=steps_in_flight) as engine:
        for _ in range(2):
            results = await say(engine, prompts(), params)
            for result, whole, end in zip(results, expected, ends, strict=True):
                assert tuple(result.token_ids) == whole[: whole.index(end) + 1]


async def test_others_are_not_disturbed_by_those_that_are_aborted(
    folder: Path, expected: Said
) -> None:
    async with running(folder, steps_in_flight=4, num_blocks=60) as engine:

        async def leave(prompt: list[int], tokens: int) -> None:
            params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
            heard = 0
            async for delta in engine.stream(prompt, params):
                heard += len(delta.token_ids)
                if heard >= tokens:
                    break

        leaving = [leave(prompt, 1 + n % 5) for n, prompt in enumerate(prompts())]
        left = asyncio.gather(*leaving)
        results = await say(engine, prompts(), ways())
        await left

        assert ids_of(results) == expected
        again = await say(engine, prompts(), ways())
        assert ids_of(again) == expected
        assert is_empty(engine)


class Failing(OpaqueOps):
    """Some calls of a kernel raise."""

    def __init__(self, *calls: int) -> None:
        super().__init__()
        self._calls = calls
        self._count = 0

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        self._count += 1
        if self._count in self._calls:
            raise ValueError("a kernel is broken")
        result: torch.Tensor = self.__getattr__("silu_mul")(gate_up)
        return result


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
async def test_after_a_failed_step_everything_starts_again_and_says_the_same(
    folder: Path, expected: Said, steps_in_flight: int
) -> None:
    parts = {"ops": Failing(9, 50)}
    async with running(folder, parts=parts, steps_in_flight=steps_in_flight) as engine:
        assert ids_of(await say(engine, prompts(), ways())) == expected
        assert is_empty(engine)


async def test_a_broken_device_fails_its_requests_and_nothing_hangs(folder: Path) -> None:
    parts = {"ops": Failing(*range(1, 10_000))}
    async with running(folder, parts=parts, steps_in_flight=3) as engine:
        with pytest.raises(RequestFailed, match="a kernel is broken"):
            await engine.generate([4, 5, 6], ways()[0])


WISHES: list[dict[str, Any]] = [
    {"temperature": 1.0, "top_k": 7, "seed": 1},
    {"temperature": 1.3, "top_p": 0.7, "min_p": 0.02, "seed": 2, "min_tokens": 5},
    {"temperature": 0.0, "repetition_penalty": 1.7, "frequency_penalty": 0.5},
    {"temperature": 0.9, "typical_p": 0.6, "seed": 3, "presence_penalty": 1.0},
    {"temperature": 1.0, "logit_bias": {7: 4.0, 9: -100.0}, "seed": 4, "no_repeat_ngram_size": 2},
    {"temperature": 0.0, "allowed_token_ids": tuple(range(40, 90))},
]


@pytest.mark.parametrize("options", [{"steps_in_flight": 1}, {"num_blocks": 30}])
async def test_every_way_to_sample_is_that_of_the_processor(
    folder: Path, options: dict[str, Any]
) -> None:
    """Together with others that sample plainly, and preempted."""
    params = [SamplingParams(max_tokens=14, **wishes) for wishes in WISHES] + ways()[:1]
    said: list[Said] = []
    for is_paged in (False, True):
        async with running(folder, is_paged=is_paged, **options) as engine:
            said.append(ids_of(await say(engine, prompts(14), params)))
            assert is_empty(engine)

    assert said[0] == said[1]


async def test_a_gpu_that_breaks_fails_what_runs_and_nothing_hangs(folder: Path) -> None:
    calls = iter(range(100_000))

    def gate(name: str) -> None:
        if next(calls) > 300:
            raise RuntimeError("the GPU is lost")

    parts = {"streams": ThreadStreams(gate=gate)}
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with suppress(EngineDead):  # it may be told once more where the engine is left
        async with running(folder, parts=parts, steps_in_flight=3, num_blocks=256) as engine:
            asked = [engine.generate(prompt, params) for prompt in prompts()]
            ends = await asyncio.gather(*asked, return_exceptions=True)

    failed = [end for end in ends if isinstance(end, (RequestFailed, EngineDead))]
    assert len(failed) + len([end for end in ends if isinstance(end, Result)]) == len(ends)
    assert any("the GPU is lost" in str(end) for end in failed)


async def test_an_engine_may_be_left_while_steps_are_in_flight(folder: Path) -> None:
    async def listen(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            pass

    async with running(folder, steps_in_flight=4) as engine:
        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        tasks = [asyncio.create_task(listen(engine.stream(p, params))) for p in prompts(5)]
        async for _ in engine.stream([5, 6, 7], params):
            break
    ends = await asyncio.gather(*tasks, return_exceptions=True)

    assert len(ends) == 5


@pytest.mark.parametrize("steps_in_flight", [1, 4])
async def test_grammars_hold_also_where_sampling_waits_for_them(
    folder: Path, steps_in_flight: int
) -> None:
    choices = ["yes", "no", "perhaps not"]
    said: list[Said] = []
    for is_paged in (False, True):
        async with running(folder, is_paged=is_paged, steps_in_flight=steps_in_flight) as engine:
            params = [
                replace(way, ignore_eos=False, structured_output=wanted)
                for way, wanted in zip(
                    ways(30),
                    [StructuredOutput.choice(choices), None, StructuredOutput.regex("[ab]{9}")] * 2,
                    strict=False,
                )
            ]
            results = await say(engine, prompts(8), params)
            said.append(ids_of(results))
            assert {results[0].text, results[4].text} <= set(choices)
            assert set(results[2].text) <= {"a", "b"}

    assert said[0] == said[1]


async def test_other_weights_are_used_by_all_that_comes_after_them(
    folder: Path, tmp_path: Path, expected: Said
) -> None:
    other = with_noise(make_engine_folder(tmp_path))
    said: list[Said] = []
    for is_paged in (False, True):
        async with running(folder, is_paged=is_paged) as engine:
            before = ids_of(await say(engine, prompts(4), ways()))
            await engine.reload_weights(other)
            said.append(ids_of(await say(engine, prompts(4), ways())))
            assert before == expected[:4]

    assert said[0] == said[1] != expected[:4]


def with_noise(folder: Path) -> Path:
    """Other weights of the same shape."""
    generator = torch.Generator().manual_seed(1)
    weights = load_file(folder / "model.safetensors")
    noisy = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in weights.items()
    }
    save_file(noisy, folder / "model.safetensors", {"format": "pt"})
    return folder


class Guesses:
    """Drafts what was said on the processor, every third time with a fault."""

    def __init__(self, said: Said) -> None:
        self._said = {tuple(prompt): list(ids) for prompt, ids in zip(prompts(), said, strict=True)}

    def most(self, request: Generate) -> int:
        return 3

    def draft(self, request: Generate, token_ids: Ints, most: int) -> list[int]:
        prompt = tuple(request.prompt.tolist())
        known = len(token_ids) - len(prompt)
        right = self._said[prompt][known : known + most]
        return [(token_id + (known % 3 == 2)) % 512 for token_id in right]


async def test_guessed_tokens_change_nothing(folder: Path, expected: Said) -> None:
    async with running(folder, drafter=Guesses(expected), steps_in_flight=2) as engine:
        assert ids_of(await say(engine, prompts(), ways())) == expected
        assert is_empty(engine)
