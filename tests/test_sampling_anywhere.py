"""Sampling does not depend on company, chunks, preemptions, drafts or steps in flight."""

import asyncio
import random
from typing import Any

import pytest

from stepahead import SamplingParams
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle

from .drafters import ScriptedDrafter
from .engines import is_empty, make_config, make_device, make_engine

Requests = list[tuple[list[int], SamplingParams]]
Said = list[tuple[int, ...]]

WORDS = ("ab", "x", "a!", "zq")


def draw_params(rng: random.Random) -> SamplingParams:
    """Everything that changes what is drawn, in mixes."""

    def maybe(value: Any, otherwise: Any, chance: float = 0.4) -> Any:
        return value if rng.random() < chance else otherwise

    some = [rng.randrange(32, 127) for _ in range(30)]
    return SamplingParams(
        max_tokens=rng.randint(12, 30),
        ignore_eos=True,
        seed=rng.randrange(2**40),
        temperature=rng.choice([0.0, 1.0, 3.0, 8.0]),
        top_k=maybe(rng.randint(1, 20), 0),
        top_p=maybe(0.9, 1.0),
        min_p=maybe(0.02, 0.0),
        typical_p=maybe(0.8, 1.0),
        presence_penalty=maybe(rng.uniform(-1, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 2), 0.0),
        repetition_penalty=maybe(rng.uniform(0.8, 2), 1.0),
        logit_bias=maybe({some[0]: 6.0, some[1]: -100.0}, {}),
        allowed_token_ids=maybe(tuple(some), None, 0.2),
        bad_words=maybe(WORDS, ()),
        no_repeat_ngram_size=maybe(rng.randint(2, 4), 0),
    )


def draw_requests(rng: random.Random) -> Requests:
    return [
        ([rng.randrange(32, 127) for _ in range(rng.randint(1, 30))], draw_params(rng))
        for _ in range(7)
    ]


async def _say(requests: Requests, *, kinds: tuple[str, ...] = (), **options: Any) -> Said:
    """What everybody hears in one engine, and that nothing stays behind."""
    options = {"max_model_len": 64} | options
    drafter = ScriptedDrafter(Oracle(), kinds) if kinds else None
    device = make_device(make_config(**options), draws=True)
    async with make_engine(device=device, drafter=drafter, **options) as engine:
        results = await asyncio.gather(*(engine.generate(p, params) for p, params in requests))
        assert is_empty(engine)
    preempted.append(sum(result.timings.preemptions for result in results))
    return [result.token_ids for result in results]


preempted: list[int] = []


async def _say_alone(requests: Requests) -> Said:
    return [(await _say([request], steps_in_flight=1))[0] for request in requests]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("seed", range(3))
def test_the_same_ids_are_said_in_any_company_and_any_schedule(seed: int) -> None:
    """Field cases 053, 056, 091 and 092."""
    requests = draw_requests(random.Random(seed))
    alone = run_virtual(_say_alone(requests))
    preempted.clear()

    assert run_virtual(_say(requests)) == alone
    assert run_virtual(_say(requests, steps_in_flight=4)) == alone
    assert run_virtual(_say(requests, steps_in_flight=1, max_num_batched_tokens=8)) == alone
    assert run_virtual(_say(requests, num_blocks=24, steps_in_flight=3)) == alone
    assert run_virtual(_say(requests, num_blocks=24, num_host_blocks=20)) == alone
    assert run_virtual(_say(requests, kinds=("right", "partly", "none", "random"))) == alone
    assert sum(preempted) > 0
