"""Cases met elsewhere: sampling parameters and random state, each as a whole request."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from stepahead import Engine, RequestFailed, RequestRejected, Result, SamplingParams
from stepahead.actors.text.bad_words import bad_word_ids
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.render import result_fields
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.sampling import sample

from .engines import is_empty, make_config, make_device, make_engine, settle, virtual
from .test_sampling import make_rows

PROMPT = [40, 41, 42]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def drawing_engine(**options: Any) -> Engine:
    device = make_device(make_config(**options), draws=True)
    return make_engine(device=device, **options)


def say(*requests: dict[str, Any], prompt: list[int] = PROMPT) -> list[Result]:
    """What these requests hear together."""

    async def together() -> list[Result]:
        async with drawing_engine() as engine:
            asked = [SamplingParams.from_dict(values) for values in requests]
            return await asyncio.gather(*(engine.generate(prompt, params) for params in asked))

    return run_virtual(together())


def said(**values: Any) -> tuple[int, ...]:
    return say(values)[0].token_ids


@pytest.mark.parametrize("temperature", [1e-4, 1e-12, 1e-300])
def test_a_tiny_temperature_says_what_greedy_says(temperature: float) -> None:
    """Field case 044, where logits differ by more than rounding at that temperature."""
    assert said(**GREEDY | {"temperature": temperature}) == said(**GREEDY)


@pytest.mark.parametrize("top_k", [0, 512, 10**7])
def test_a_top_k_that_cuts_nothing_changes_nothing(top_k: int) -> None:
    """Field case 046."""
    values = {"seed": 3, "temperature": 5.0, "max_tokens": 12, "ignore_eos": True}

    assert said(**values, top_k=top_k) == said(**values)


def test_a_top_k_below_zero_is_refused() -> None:
    """Field case 046: 0 keeps all, and there is one way to say so."""
    with pytest.raises(RequestRejected, match="top_k is -1; it must be a whole number of at least"):
        SamplingParams(top_k=-1)


def test_a_top_p_of_zero_is_refused_and_json_is_always_valid() -> None:
    """Field case 047."""
    with pytest.raises(RequestRejected, match="top_p is 0; it must be above 0 and at most 1"):
        SamplingParams(top_p=0)
    result = say({"top_p": 1e-9, "logprobs": 1, "max_tokens": 5, "ignore_eos": True})[0]
    assert json.loads(json.dumps(result_fields(result), allow_nan=False))
    assert result.token_ids == said(temperature=0, max_tokens=5, ignore_eos=True)


def test_twins_without_a_seed_say_different_things() -> None:
    """Field case 049."""
    one, other = say(*[{"temperature": 8.0, "max_tokens": 20, "ignore_eos": True}] * 2)

    assert one.token_ids != other.token_ids


@pytest.mark.parametrize("order", [1, -1])
def test_who_stands_beside_a_penalty_is_not_penalised(order: int) -> None:
    """Field case 053."""
    plain = {"seed": 7, "temperature": 6.0, "max_tokens": 20, "ignore_eos": True}
    penalised = {**GREEDY, "repetition_penalty": 2.0, "frequency_penalty": 2.0, "max_tokens": 20}

    both = say(*[plain, penalised][::order])[::order]

    assert [result.token_ids for result in both] == [said(**plain), said(**penalised)]


def test_penalties_of_the_output_leave_the_prompt_alone() -> None:
    """Field case 055: the prompt holds what is said next, until the prompt counts."""
    prompts = ([token_id, other] for other in range(40, 60) for token_id in range(32, 127))
    prompt = next(prompt for prompt in prompts if Oracle().answer(prompt, 1) == prompt[:1])
    values = {**GREEDY, "max_tokens": 1}

    output_only = say({**values, "frequency_penalty": 2.0, "presence_penalty": 2.0}, prompt=prompt)
    with_prompt = say({**values, "repetition_penalty": 50.0}, prompt=prompt)

    assert output_only[0].token_ids == (prompt[0],)
    assert with_prompt[0].token_ids != (prompt[0],)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"logit_bias": {513: 5.0}}, "logit_bias holds 513; the model's ids go from 0 to 511"),
        ({"allowed_token_ids": [1, 512]}, "allowed_token_ids holds 512; the model's ids go from"),
        ({"stop_token_ids": [519], "min_tokens": 1}, "stop_token_ids holds 519; the model's ids"),
        ({"logit_bias": {3: 1e300}}, "logit_bias of token 3 is 1e.300; it must be a number from"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias of token 3 is nan; it must be a number"),
    ],
)
def test_what_the_model_cannot_take_is_refused_and_neighbours_go_on(
    values: dict[str, Any], fault: str
) -> None:
    """Field cases 028, 058 and 059."""

    async def beside() -> tuple[int, ...]:
        async with make_engine() as engine:
            neighbour = asyncio.ensure_future(engine.generate(PROMPT, SamplingParams(**GREEDY)))
            await settle(engine, 2)
            with pytest.raises(RequestRejected, match=fault):
                await engine.generate(PROMPT, SamplingParams.from_dict(values))
            return (await neighbour).token_ids

    assert run_virtual(beside()) == said(**GREEDY)


def test_a_bias_of_minus_infinity_is_a_ban() -> None:
    """Field case 059."""
    first = said(**GREEDY)[0]

    assert first not in said(**GREEDY, logit_bias={first: float("-inf")})


class MergingTokenizer(ToyTokenizer):
    """Knows ` w300` as one id, as it decodes it."""

    def _encode_plain(self, text: str) -> list[int]:
        pieces = text.split(" w300")
        ids = super()._encode_plain(pieces[0])
        for piece in pieces[1:]:
            ids += [300, *super()._encode_plain(piece)]
        return ids


def test_bad_words_have_the_ids_of_both_their_forms() -> None:
    """Field case 061: with a space it is one id, and without one four."""
    tokenizer = MergingTokenizer()

    forms = bad_word_ids(["w300"], tokenizer)

    assert sorted(map(len, forms)) == [1, 4]
    assert {tokenizer.decode(form) for form in forms} == {"w300", " w300"}
    assert bad_word_ids([" w300"], tokenizer) == forms


def test_both_forms_of_a_bad_word_are_blocked_and_longer_words_are_not() -> None:
    """Field case 061."""
    answer = said(**GREEDY)
    text = ToyTokenizer().decode(answer)
    word, longer = text[2:4], text[2:3] + chr(ord(text[3]) ^ 1)

    spoken = say({**GREEDY, "bad_words": [word]})[0]
    untouched = said(**GREEDY, bad_words=[longer])

    assert word not in spoken.text
    assert spoken.token_ids[:3] == answer[:3]  # the first piece of the word is said as before
    assert untouched == answer


@virtual
async def test_a_request_that_bans_everything_fails_alone() -> None:
    nothing = dict.fromkeys(range(512), float("-inf"))
    async with make_engine() as engine:
        neighbour = asyncio.ensure_future(engine.generate(PROMPT, SamplingParams(**GREEDY)))
        with pytest.raises(RequestFailed, match="no token is left to sample"):
            await engine.generate(PROMPT, SamplingParams(logit_bias=nothing))
        answer = (await neighbour).token_ids
        assert is_empty(engine)
    assert list(answer) == Oracle().answer(PROMPT, 12)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_row_that_is_not_numbers_never_gives_an_id(poison: float) -> None:
    """Field case 062, in every way to sample: the other row is as it would be."""
    ways: list[dict[str, Any]] = [{}, {"top_k": 3}, {"top_p": 0.5}, {"typical_p": 0.5}]
    for way in [*ways, {"min_p": 0.1}, {"temperature": 0.0}]:
        logits = np.random.default_rng(1).normal(0, 2, (2, 40)).astype(np.float32)
        clean = sample(logits.copy(), make_rows(2, **way))
        logits[1, 5] = poison

        assert sample(logits, make_rows(2, **way)).tolist() == [clean[0], -1]
