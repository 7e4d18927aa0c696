"""Logits processors of the embedding program: what they see, what they may do, how they fail."""

import asyncio
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from stepahead import Engine, ProcessedRows, RequestFailed, RequestRejected, SamplingParams
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle

from .drafters import ScriptedDrafter
from .engines import is_empty, make_config, make_device, make_engine, settle, virtual

PROMPT = [40, 41, 42, 43, 44]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}

Said = list[tuple[int, ...]]


def only_even(logits: Tensor, rows: ProcessedRows) -> None:
    logits[:, 1::2] = -torch.inf


def say(logits: Tensor, rows: ProcessedRows) -> None:
    """Says its argument's letters, one after the other, and begins again."""
    for row, text in enumerate(rows.arguments):
        place = int(rows.num_tokens[row] - rows.num_prompt_tokens[row])
        logits[row, ord(text[place % len(text)])] = 1e6


def no_token_twice(logits: Tensor, rows: ProcessedRows) -> None:
    """Looks at all that was said so far, whoever sampled it."""
    seen = torch.zeros(len(logits), logits.shape[1] + 1, dtype=torch.bool)
    seen.scatter_(1, rows.token_ids.long() % (logits.shape[1] + 1), True)
    logits.masked_fill_(seen[:, :-1], -torch.inf)


def break_down(logits: Tensor, rows: ProcessedRows) -> None:
    if "now" in rows.arguments:
        raise ValueError("out of order")


def spoil(logits: Tensor, rows: ProcessedRows) -> None:
    logits[[a == "now" for a in rows.arguments]] = torch.nan


PROCESSORS = {f.__name__: f for f in (only_even, say, no_token_twice, break_down, spoil)}


def engine_with(*, drafter: ScriptedDrafter | None = None, **options: Any) -> Engine:
    device = make_device(make_config(**options), draws=True, processors=PROCESSORS)
    return make_engine(device=device, drafter=drafter, **options)


@virtual
async def test_processors_change_what_the_rows_that_name_them_may_say() -> None:
    async with engine_with() as engine:
        plain, even, both, word = await asyncio.gather(
            *(
                engine.generate(PROMPT, SamplingParams(**GREEDY, logits_processors=names))
                for names in ((), ("only_even",), ("only_even", "say=bcd"), ("say=bcd",))
            )
        )

    assert list(plain.token_ids) == Oracle().answer(PROMPT, 16)
    assert all(token_id % 2 == 0 for token_id in even.token_ids)
    assert both.text == word.text == ("bcd" * 6)[:16]  # each in the order that it was named in


@pytest.mark.usefixtures("one_thread")
def test_processors_see_the_same_tokens_in_any_schedule() -> None:
    rng = random.Random(4)
    requests = [
        (
            [rng.randrange(32, 127) for _ in range(rng.randint(1, 30))],
            SamplingParams(
                max_tokens=20,
                ignore_eos=True,
                seed=serial,
                temperature=5.0,
                logits_processors=("no_token_twice",) if serial % 3 else (),
            ),
        )
        for serial in range(6)
    ]

    async def heard(some: Any, **options: Any) -> Said:
        async with engine_with(**({"max_model_len": 64} | options)) as engine:
            return [
                result.token_ids
                for result in await asyncio.gather(*(engine.generate(*asked) for asked in some))
            ]

    alone = [run_virtual(heard([asked], steps_in_flight=1))[0] for asked in requests]
    for prompt, params in requests:
        said = alone[requests.index((prompt, params))]
        if params.logits_processors:
            assert len({*prompt, *said}) == len({*prompt}) + 20

    drafter = ScriptedDrafter(Oracle(), ("right", "partly", "random"))
    assert run_virtual(heard(requests, steps_in_flight=4)) == alone
    assert run_virtual(heard(requests, num_blocks=20, max_num_batched_tokens=8)) == alone
    assert run_virtual(heard(requests, drafter=drafter)) == alone


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("break_down", "the logits processor 'break_down' raised ValueError: out of order"),
        ("spoil", "the logits processor 'spoil' made logits that are not numbers"),
    ],
)
def test_a_processor_at_fault_fails_the_request_that_met_it(name: str, fault: str) -> None:
    async def scenario() -> None:
        async with engine_with() as engine:
            quiet = SamplingParams(**GREEDY, logits_processors=(f"{name}=later",))
            neighbour = asyncio.ensure_future(engine.generate(PROMPT, quiet))
            with pytest.raises(RequestFailed, match=fault):
                await engine.generate(
                    PROMPT, SamplingParams(**GREEDY, logits_processors=(f"{name}=now",))
                )
            assert list((await neighbour).token_ids) == Oracle().answer(PROMPT, 16)
            await settle(engine)
            assert is_empty(engine)

    run_virtual(scenario())


@virtual
async def test_a_processor_that_the_engine_was_not_given_is_refused_by_name() -> None:
    async with engine_with() as engine:
        with pytest.raises(
            RequestRejected, match="names 'shout'; the engine was given: break_down"
        ):
            await engine.generate(PROMPT, SamplingParams(logits_processors=("shout=loud",)))
