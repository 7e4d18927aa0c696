"""The whole surface of sampling parameters: whatever is asked, the engine and others go on."""

import asyncio
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stepahead import RequestFailed, RequestRejected, SamplingParams
from stepahead.actors.virtual_time import run_virtual

from .engines import is_empty, make_config, make_device, make_engine, settle
from .parameter_values import parameters

LIVES, REQUESTS = 40, 50
NEIGHBOUR = SamplingParams(max_tokens=14, ignore_eos=True, seed=7, frequency_penalty=0.3)
OPTIONS: dict[str, Any] = {"max_model_len": 24, "num_blocks": 400, "max_num_seqs": 60}

Counts = Counter[str]


async def _ask(engine: Any, values: dict[str, Any]) -> str:
    """A request that may be refused or fail, and must do nothing else; what became of it."""
    try:
        result = await engine.generate("what", SamplingParams.from_dict(values))
    except RequestRejected:
        return "refused"
    except RequestFailed as failure:
        is_own_fault = "no token is left" in str(failure) or "allows no token" in str(failure)
        return "failed" if is_own_fault else str(failure)
    said = sum(len(output.token_ids) for output in result.outputs)
    assert said == result.usage.completion_tokens
    return "answered"


async def _live(requests: list[dict[str, Any]]) -> tuple[tuple[int, ...], Counts]:
    """Ask for everything beside a neighbour; what the neighbour said, and how the others went."""
    device = make_device(make_config(**OPTIONS), draws=True)
    async with make_engine(device=device, **OPTIONS) as engine:
        neighbour = asyncio.ensure_future(engine.generate("neighbour", NEIGHBOUR))
        ends = Counter(await asyncio.gather(*(_ask(engine, values) for values in requests)))
        said = (await neighbour).token_ids
        await settle(engine, 5)  # a stop string is told before its blocks are free
        assert (await engine.health()).state == "running"
        assert is_empty(engine)
    return said, ends


@cache
def _undisturbed() -> tuple[int, ...]:
    return run_virtual(_live([]))[0]


@pytest.mark.usefixtures("one_thread")
def test_no_parameters_end_the_engine_or_change_what_a_neighbour_says() -> None:
    """2,000 requests, of whom many make no sense."""
    ends: Counts = Counter()

    @settings(
        max_examples=LIVES,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # what fails is told as it is: lives take long to make smaller
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(parameters(), min_size=REQUESTS, max_size=REQUESTS))
    def lives(requests: list[dict[str, Any]]) -> None:
        said, ended = run_virtual(_live(requests))
        ends.update(ended)
        assert said == _undisturbed()

    lives()
    assert ends.total() >= LIVES * REQUESTS
    assert min(ends["refused"], ends["answered"]) > LIVES * REQUESTS / 10
    assert ends["failed"] > 0
    assert set(ends) == {"refused", "answered", "failed"}
