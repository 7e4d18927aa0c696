"""engine.score: the logprobs of given tokens, without an answer."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stepahead import Engine, EngineConfig, RequestFailed, RequestRejected, SamplingParams
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.gpu.logprobs import log_softmax_at
from stepahead.gpu.oracle import Oracle

from .engines import is_empty, make_engine, settle, virtual
from .tiny_models import make_folder

PROMPT = "Once upon a time, there was"
COMPLETIONS = (" a king", " a mouse who", "!")


def expected(prompt: str, completion: str) -> list[float]:
    """What the oracle thinks of the completion's tokens, which are its bytes."""
    oracle, ids = Oracle(), list((prompt + completion).encode())
    hashes = oracle.extend(oracle.empty, ids)
    rows = [oracle.logits(hashes[i - 1], ToyTokenizer().vocab_size) for i in range(len(ids))]
    values = [float(log_softmax_at(rows[i], rows[i])[ids[i]]) for i in range(len(prompt), len(ids))]
    return values


@virtual
async def test_every_token_of_every_completion_is_scored() -> None:
    """Field case 043."""
    async with make_engine() as engine:
        scores = await engine.score(PROMPT, COMPLETIONS)
        for score, completion in zip(scores, COMPLETIONS, strict=True):
            assert bytes(score.token_ids).decode() == completion
            told = [own.token.logprob for own in score.logprobs]
            assert told == pytest.approx(expected(PROMPT, completion), abs=1e-4)
            assert score.logprob == pytest.approx(sum(told))
            assert [own.token.token_id for own in score.logprobs] == list(score.token_ids)
        assert is_empty(engine)


@virtual
async def test_texts_and_ids_score_the_same() -> None:
    ids, others = list(PROMPT.encode()), [list(text.encode()) for text in COMPLETIONS]
    async with make_engine() as engine:
        by_text = await engine.score(PROMPT, COMPLETIONS)
        for prompt, completions in ((ids, others), (PROMPT, others), (ids, COMPLETIONS)):
            scores = await engine.score(prompt, completions)
            assert [score.logprobs for score in scores] == [score.logprobs for score in by_text]


@virtual
async def test_the_prompt_is_computed_once() -> None:
    """Field case 041: in chunks of 8, all of it is computed before the answer."""
    async with make_engine(max_num_batched_tokens=8) as engine:
        first, *others = await engine.score(PROMPT, COMPLETIONS)
        assert first.usage.cached_tokens == 0
        whole_blocks = (len(PROMPT) - 1) // 4 * 4
        assert [score.usage.cached_tokens for score in others] == [whole_blocks] * len(others)


@virtual
async def test_the_likeliest_tokens_beside_each_can_be_had() -> None:
    async with make_engine() as engine:
        (score,) = await engine.score(PROMPT, [" a king"], logprobs=3)
        assert {len(own.top) for own in score.logprobs} == {3}


@virtual
async def test_more_completions_than_seats_take_turns() -> None:
    async with make_engine(max_num_seqs=2, max_waiting=1) as engine:
        scores = await engine.score(PROMPT, [f" {n}" for n in range(20)])
        assert [bytes(score.token_ids).decode() for score in scores] == [f" {n}" for n in range(20)]


@virtual
async def test_who_gives_up_leaves_nothing_running() -> None:
    async with make_engine(max_num_batched_tokens=8) as engine:
        task = asyncio.ensure_future(engine.score(PROMPT, COMPLETIONS))
        await settle(engine, 6)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settle(engine, 4)
        assert is_empty(engine)


@virtual
async def test_a_deadline_that_passes_is_no_score() -> None:
    async with make_engine(max_num_batched_tokens=8) as engine:
        with pytest.raises(RequestFailed, match="not scored to its end: timeout"):
            await engine.score(PROMPT, COMPLETIONS, deadline=0.025)
        await settle(engine, 4)  # the steps in flight
        assert is_empty(engine)


@pytest.mark.parametrize(
    ("prompt", "completions", "words"),
    [
        (PROMPT, [""], "a completion is empty"),
        (PROMPT, [[]], "a completion is empty"),
        ("", ["a"], "the prompt is empty"),
        ([], ["a"], "the prompt is empty"),
        (PROMPT, "a king", "completions is 'a king'; it must be a sequence"),
        (PROMPT, [[9999]], "9999"),
        (PROMPT, ["x" * 300], "the prompt has 327 tokens"),
    ],
)
def test_what_cannot_be_scored_is_refused(prompt: object, completions: object, words: str) -> None:
    async def scenario() -> None:
        async with make_engine() as engine:
            with pytest.raises(RequestRejected, match=words):
                await engine.score(prompt, completions)  # type: ignore[arg-type]  # wrong on purpose

    virtual(scenario)()


def test_an_answer_without_tokens_is_refused_and_score_is_named() -> None:
    """Field case 040."""
    with pytest.raises(RequestRejected, match=r"max_tokens is 0.*engine\.score"):
        SamplingParams(max_tokens=0)


@virtual
async def test_no_completions_have_no_scores() -> None:
    async with make_engine() as engine:
        assert await engine.score(PROMPT, []) == ()


def test_scores_and_logprobs_are_those_of_transformers(tmp_path: Path) -> None:
    """A tiny model on the processor, chunked, with the prompt cached for all but the first."""
    from transformers import AutoModelForCausalLM

    from stepahead.actors.backend import Backend
    from stepahead.gpu.cpu import open_cpu_device
    from stepahead.gpu.options import DeviceOptions

    folder = make_folder(tmp_path, "llama", initializer_range=0.5)
    prompt, completions = [3, 14, 15, 92, 65, 35, 89, 79], [[32, 38], [46, 26, 43], [2]]

    async def scored() -> None:
        loop = asyncio.get_running_loop()
        options = DeviceOptions(model=str(folder), dtype="float32", num_blocks=32, block_size=4)

        def post(call: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(call)

        device = open_cpu_device(options, post)
        config = EngineConfig(max_num_batched_tokens=5, max_num_seqs=4, block_size=4)
        backend = Backend(device, ToyTokenizer(96 + 512), SamplingParams())
        async with Engine(config, backend=backend) as engine:
            for score, completion in zip(
                await engine.score(prompt, completions), completions, strict=True
            ):
                assert score.token_ids == tuple(completion)
                told = [own.token.logprob for own in score.logprobs]
                row = reference([*prompt, *completion])
                ids = enumerate(completion, start=len(prompt) - 1)
                assert told == pytest.approx([row[i, t].item() for i, t in ids], abs=2e-4)
            said = await engine.generate(
                prompt, SamplingParams(temperature=0, max_tokens=8, logprobs=2, ignore_eos=True)
            )
            row = reference([*prompt, *said.token_ids])[len(prompt) - 1 :]
            assert said.token_ids == tuple(row[:8].argmax(dim=-1).tolist())
            told = [own.token.logprob for own in said.outputs[0].logprobs or ()]
            assert told == pytest.approx(row[:8].amax(dim=-1).tolist(), abs=2e-4)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def reference(ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logprobs: torch.Tensor = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        return logprobs

    asyncio.run(scored())
