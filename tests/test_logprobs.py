"""Logprobs through the whole engine, in virtual time; group E of the field cases by number."""

import asyncio
import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepahead import FinishReason, RequestFailed, RequestRejected, Result, SamplingParams
from stepahead.actors.text.toy import EOS, ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.logprobs import likeliest, log_softmax_at
from stepahead.gpu.oracle import Oracle
from stepahead.messages import Floats, PositionLogprobs, PrefixAccount, PrefixEnd

from .drafters import ScriptedDrafter
from .engines import is_empty, make_engine, settle, virtual

VOCAB = ToyTokenizer().vocab_size
PROMPT = list(range(40, 66))  # 6 blocks of 4, and a half
ASKED = (33, 300)


def ask(**changes: object) -> SamplingParams:
    fields: dict[str, object] = {
        "temperature": 0,
        "max_tokens": 6,
        "logprobs": 2,
        "logprob_token_ids": ASKED,
        "prompt_logprobs": 1,
        "ignore_eos": True,
    }
    return SamplingParams(**(fields | changes))  # type: ignore[arg-type]  # fields checked there


def count_kept() -> int:
    """What was told and is still held by anybody."""
    gc.collect()
    return sum(type(thing) is PositionLogprobs for thing in gc.get_objects())


def check_position(
    told: PositionLogprobs, before: Sequence[int], token_id: int, top: int, asked: Sequence[int]
) -> None:
    """Against the oracle's own logits."""
    oracle = Oracle()
    prefix = oracle.extend(oracle.empty, before)[-1]
    logits = oracle.logits(prefix, VOCAB)
    expected = log_softmax_at(logits, logits)
    assert told.token.token_id == token_id
    assert [one.token_id for one in told.top] == likeliest(logits, top).tolist()
    assert [one.token_id for one in told.asked] == list(asked)
    for one in (told.token, *told.top, *told.asked):
        assert one.logprob == pytest.approx(float(expected[one.token_id]), abs=1e-5)
        assert one.rank == int((logits > logits[one.token_id]).sum()) + 1


def check_result(result: Result, prompt: Sequence[int], *, start: int = 0) -> None:
    """Every token of prompt and answer is told of, in order and as the oracle says."""
    output = result.outputs[0]
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids)
    for place, (told, token_id) in enumerate(zip(output.logprobs, output.token_ids, strict=True)):
        check_position(told, [*prompt, *output.token_ids[:place]], token_id, 2, ASKED)
    total = sum(told.token.logprob for told in output.logprobs)
    assert output.cumulative_logprob == pytest.approx(total)
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == len(prompt) - start
    for position, own in enumerate(result.prompt_logprobs, start=start):
        if position == 0:
            assert own is None
        else:
            assert own is not None
            check_position(own, prompt[:position], prompt[position], 1, ())


@virtual
async def test_every_token_is_told_of_in_order() -> None:
    async with make_engine() as engine:
        check_result(await engine.generate(PROMPT, ask()), PROMPT)
        assert is_empty(engine)


@virtual
async def test_deltas_carry_the_logprobs_of_their_tokens() -> None:
    async with make_engine() as engine:
        deltas = [delta async for delta in engine.stream(PROMPT, ask())]
        for delta in deltas:
            assert delta.logprobs is not None
            assert tuple(own.token.token_id for own in delta.logprobs) == delta.token_ids
        told = [delta.prompt_logprobs is not None for delta in deltas]
        assert told == [True] + [False] * (len(deltas) - 1)
        assert len(deltas) > 1


@virtual
async def test_a_slow_reader_loses_no_logprobs() -> None:
    async with make_engine() as engine:
        stream = engine.stream(PROMPT, ask(max_tokens=20))
        first = await anext(stream)
        await settle(engine, 30)
        rest = await anext(stream)
        assert first.prompt_logprobs is not None
        assert rest.logprobs is not None
        assert [own.token.token_id for own in rest.logprobs] == list(rest.token_ids)
        assert len(first.token_ids) + len(rest.token_ids) == 20


@virtual
async def test_who_does_not_ask_gets_none() -> None:
    async with make_engine() as engine:
        asking, plain = await asyncio.gather(
            engine.generate(PROMPT, ask()),
            engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)),
        )
        assert plain.outputs[0].logprobs is None
        assert plain.outputs[0].cumulative_logprob is None
        assert plain.prompt_logprobs is None
        assert plain.token_ids == asking.token_ids


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
@pytest.mark.parametrize("chunk", [3, 11, 64])
def test_064_prompt_logprobs_do_not_depend_on_order_cache_or_chunks(
    steps_in_flight: int, chunk: int
) -> None:
    """Three prompts that share 24 tokens, in two orders, each after the others are cached."""
    prompts = [[*PROMPT, 97 + number, 98] for number in range(3)]

    async def scenario() -> None:
        async with make_engine(
            steps_in_flight=steps_in_flight, max_num_batched_tokens=chunk, max_num_seqs=3
        ) as engine:
            told: list[dict[int, Result]] = []
            for order in ((0, 1, 2), (2, 1, 0)):
                results = await asyncio.gather(
                    *(engine.generate(prompts[number], ask()) for number in order)
                )
                told.append(dict(zip(order, results, strict=True)))
            for number, prompt in enumerate(prompts):
                check_result(told[0][number], prompt)
                assert told[0][number].prompt_logprobs == told[1][number].prompt_logprobs
                assert told[1][number].usage.cached_tokens == 0
                assert told[1][number].usage.prefix == PrefixAccount(PrefixEnd.COMPUTED)

    virtual(scenario)()


@pytest.mark.parametrize("start", [1, 8, 9, 24, 25])
def test_065_the_first_position_after_the_start_is_told_of(start: int) -> None:
    """The second turn of a conversation, whose first is cached."""

    async def scenario() -> None:
        async with make_engine() as engine:
            await engine.generate(PROMPT, ask())
            again = await engine.generate(PROMPT, ask(prompt_logprobs_start=start))
            check_result(again, PROMPT, start=start)
            assert again.usage.cached_tokens == (start - 1) // 4 * 4

    virtual(scenario)()


@virtual
async def test_067_an_abort_in_the_middle_of_a_prompt_leaves_nothing_behind() -> None:
    async with make_engine(max_num_batched_tokens=9) as engine:
        wiring = engine._started
        before = count_kept()
        detokenizer = next(actor for actor in wiring.actors if hasattr(actor, "_logprobs"))
        for _ in range(100):
            stream = engine.stream(PROMPT, ask(), request_id="r")
            task = asyncio.ensure_future(stream.result())
            await settle(engine)  # the first of three chunks
            await engine.abort("r")
            result = await task
            assert result.finish_reason is FinishReason.ABORT
            assert result.prompt_logprobs is not None
            assert len(result.prompt_logprobs) < len(PROMPT)
        await settle(engine, 4)
        assert is_empty(engine)
        assert not detokenizer._logprobs
        del stream, task, result
        assert count_kept() == before


@virtual
async def test_068_the_end_of_a_turn_has_its_id_and_a_name() -> None:
    async with make_engine() as engine:
        params = ask(logprob_token_ids=(EOS, 195), stop_token_ids=())
        result = await engine.generate(PROMPT, params)
        logprobs = result.outputs[0].logprobs
        assert logprobs is not None
        end, half = logprobs[-1].asked
        assert (end.token_id, end.text) == (EOS, "<eos>")
        assert (half.token_id, half.text) == (195, "�")  # the first byte of a character


@pytest.mark.parametrize("n", [1, 3])
def test_031_ids_logprobs_and_usage_count_the_same_tokens_where_an_eos_ends_it(n: int) -> None:
    async def scenario() -> None:
        async with make_engine(oracle=Oracle(eos_every=6)) as engine:
            result = await engine.generate(PROMPT, ask(n=n, ignore_eos=False, max_tokens=100))

        for output in result.outputs:
            assert output.finish_reason is FinishReason.STOP
            assert output.token_ids[-1] == EOS
            told = [own.token.token_id for own in output.logprobs or ()]
            assert told == list(output.token_ids)
        said = sum(len(output.token_ids) for output in result.outputs)
        assert said == result.usage.completion_tokens

    run_virtual(scenario())


@virtual
async def test_what_is_behind_a_stop_string_is_dropped_as_its_tokens_are() -> None:
    said = Oracle().answer(PROMPT, 12)
    stop = ToyTokenizer().decode(said[3:5])
    async with make_engine(steps_in_flight=4) as engine:
        result = await engine.generate(PROMPT, ask(max_tokens=12, stop=stop))
        assert result.stop_reason == stop
        assert list(result.token_ids) == said[:5]
        check_result(result, PROMPT)


@virtual
async def test_a_preempted_prompt_is_told_of_once() -> None:
    """Two sequences in room for one and a half."""
    prompts = [list(range(40, 60)), list(range(60, 80))]
    async with make_engine(
        num_blocks=12, max_num_batched_tokens=8, watermark=0.0, steps_in_flight=2
    ) as engine:
        results = await asyncio.gather(
            *(engine.generate(prompt, ask(max_tokens=16)) for prompt in prompts)
        )
        assert sum(result.timings.preemptions for result in results) > 0
        for prompt, result in zip(prompts, results, strict=True):
            check_result(result, prompt)


@virtual
async def test_a_more_important_request_interrupts_a_prompt_that_is_told_of() -> None:
    async with make_engine(num_blocks=16, max_num_batched_tokens=8, watermark=0.0) as engine:
        long = list(range(40, 40 + 48))
        first = asyncio.ensure_future(engine.generate(long, ask(max_tokens=3), priority=1))
        await settle(engine, 3)
        second = await engine.generate(long[:40], ask(max_tokens=12), priority=0)
        result = await first
        assert result.timings.preemptions > 0
        check_result(result, long)
        check_result(second, long[:40])


@pytest.mark.parametrize("kind", ["right", "partly", "random"])
def test_accepted_drafts_are_told_of(kind: str) -> None:
    async def scenario() -> None:
        async with make_engine(drafter=ScriptedDrafter(Oracle(), (kind,))) as engine:
            check_result(await engine.generate(PROMPT, ask(max_tokens=20)), PROMPT)

    virtual(scenario)()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": 21}, "logprobs asks for 21 tokens"),
        ({"logprobs": -1}, "the whole vocabulary"),
        ({"prompt_logprobs": 21}, "prompt_logprobs asks for 21 tokens"),
        ({"logprob_token_ids": (512,)}, "logprob_token_ids holds 512"),
        ({"logprob_token_ids": (1,) * 1025}, "it may have 1,024"),
        ({"prompt_logprobs_start": 26}, "the prompt has 26 tokens"),
        ({"prompt_logprobs": None, "prompt_logprobs_start": 1}, "without prompt_logprobs"),
    ],
)
def test_what_cannot_be_told_is_refused(changes: dict[str, object], words: str) -> None:
    async def scenario() -> None:
        async with make_engine() as engine:
            with pytest.raises(RequestRejected, match=words):
                await engine.generate(PROMPT, ask(**changes))

    virtual(scenario)()


@virtual
async def test_the_whole_vocabulary_is_told_of_where_the_engine_allows_it() -> None:
    async with make_engine(max_logprobs=VOCAB) as engine:
        result = await engine.generate(PROMPT, ask(logprobs=-1, prompt_logprobs=None))
        logprobs = result.outputs[0].logprobs
        assert logprobs is not None
        for own in logprobs:
            assert len(own.top) == VOCAB
            assert sum(math.exp(one.logprob) for one in own.top) == pytest.approx(1)


@virtual
async def test_every_answer_to_a_prompt_is_told_of_and_the_prompt_once() -> None:
    async with make_engine() as engine:
        result = await engine.generate(PROMPT, ask(n=3))
        assert len(result.outputs) == 3
        for output in result.outputs:
            assert output.logprobs is not None
            told = tuple(own.token.token_id for own in output.logprobs)
            assert told == output.token_ids
        check_result(result, PROMPT)


@virtual
async def test_only_the_first_of_several_answers_computes_the_prompt_to_tell_of_it() -> None:
    async with make_engine() as engine:
        stream = engine.stream(PROMPT, ask(n=3))
        told = [delta.index async for delta in stream if delta.prompt_logprobs is not None]

    assert told == [0]


class SilentOracle(Oracle):
    """Its logits are no numbers behind one prefix."""

    def logits(self, prefix: int, vocab_size: int) -> Floats:
        logits = super().logits(prefix, vocab_size)
        if prefix == self.extend(self.empty, b"told of in")[-1]:
            logits[7] = np.nan
        return logits


@pytest.mark.parametrize("chunk", [8, 64])
def test_a_prompt_whose_logits_are_not_numbers_fails_who_is_told_of_it_alone(chunk: int) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {"max_num_batched_tokens": chunk, "oracle": SilentOracle()}
        async with make_engine(**options) as engine:
            params = SamplingParams(max_tokens=4)
            plain, other = await engine.generate("told of in part", params), "told of once"
            neighbour = asyncio.ensure_future(engine.generate(other, params))
            with pytest.raises(RequestFailed, match="not numbers"):
                await engine.generate("told of in part", replace(params, prompt_logprobs=0))
            with pytest.raises(RequestFailed, match="not numbers"):
                await engine.score("told of", [" other", " in part"])
            assert (await neighbour).finish_reason == "length"
            assert (await engine.generate("told of in part", params)).token_ids == plain.token_ids
            assert is_empty(engine)

    run_virtual(scenario())
