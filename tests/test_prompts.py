"""Token ids as callers give them: read, refused by name, and long ones in slices."""

import asyncio
from typing import Any

import numpy as np
import pytest

from stepahead import RequestRejected, SamplingParams
from stepahead.actors.prompts import SLICE, PromptReader
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle
from stepahead.messages import Ints

from .batching import make_facts
from .engines import make_engine

LONG = [i % 500 for i in range(3 * SLICE + 7)]


def make_reader() -> PromptReader:
    return PromptReader(make_facts(max_model_len=100_000))


def read(prompt: Any) -> Ints:
    return run_virtual(make_reader().read(prompt))


@pytest.mark.parametrize(
    "prompt",
    [
        [5, 6, 0],
        (5, 6, 0),
        [np.int64(5), 6, np.uint8(0)],
        np.array([5, 6, 0]),
        np.array([5, 6, 0], dtype=np.uint16),
    ],
)
def test_ids_are_read_from_whatever_holds_them(prompt: Any) -> None:
    token_ids = read(prompt)

    assert token_ids.tolist() == [5, 6, 0]
    assert token_ids.dtype == np.int32
    assert not token_ids.flags.writeable


def test_the_caller_keeps_its_own_array() -> None:
    prompt = np.array([5, 6, 7], dtype=np.int32)

    token_ids = read(prompt)
    prompt[0] = 9

    assert token_ids[0] == 5


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (True, "True"),
        (512, "512"),
        (-1, "-1"),
        (2**40, "1099511627776"),
        (-(2**40), "-1099511627776"),
        (1.0, "1.0"),
        ("a", "'a'"),
        (None, "None"),
        ([1], r"\[1\]"),
        (np.float32(2), "float32"),
        (np.bool_(True), "True"),
    ],
)
@pytest.mark.parametrize("before", [[], [4] * (2 * SLICE)])
def test_what_is_no_id_is_refused_by_name(before: list[int], wrong: Any, shown: str) -> None:
    with pytest.raises(RequestRejected, match=f"the prompt holds .*{shown}"):
        read([*before, 5, wrong, 7])


@pytest.mark.parametrize(
    "prompt", [np.array([1.5]), np.array([True]), np.array([600]), np.array([-1]), np.array(["a"])]
)
def test_an_array_of_anything_else_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestRejected, match="the prompt holds"):
        read(prompt)


@pytest.mark.parametrize("prompt", [[], np.array([]), np.zeros((0,), np.int32)])
def test_no_ids_at_all_are_an_empty_prompt(prompt: Any) -> None:
    with pytest.raises(RequestRejected, match="the prompt is empty"):
        read(prompt)


@pytest.mark.parametrize("prompt", [np.zeros((2, 2), np.int32), {1, 2}, b"ab", 7])
def test_what_is_no_row_of_ids_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestRejected, match="must be text or a sequence of token ids"):
        read(prompt)


def test_long_prompts_together_are_read_one_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    worked: list[int] = []
    read_row = PromptReader._read_row

    def reading(self: PromptReader, prompt: Any) -> Ints:
        worked.append(turns)
        return read_row(self, prompt)

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        reader = make_reader()
        ticking = asyncio.create_task(tick())
        await asyncio.gather(*(reader.read(LONG) for _ in range(5)))
        ticking.cancel()

    monkeypatch.setattr(PromptReader, "_read_row", reading)
    run_virtual(scenario())

    assert len(worked) == 5 * 4
    assert len(set(worked)) == len(worked), "two slices in one turn of the event loop"


def test_a_list_that_changes_while_it_is_read_counts_as_it_was() -> None:
    async def scenario() -> None:
        prompt = LONG.copy()
        reading = asyncio.create_task(make_reader().read(prompt))
        await asyncio.sleep(0)
        prompt.clear()
        assert (await reading).tolist() == LONG

    run_virtual(scenario())


def test_a_long_prompt_is_answered_as_the_oracle_answers_it() -> None:
    prompt = LONG[: 2 * SLICE]

    async def scenario() -> None:
        async with make_engine(
            num_blocks=8192, max_model_len=20_000, max_num_batched_tokens=2048
        ) as engine:
            result, again, short = await asyncio.gather(
                engine.generate(prompt, SamplingParams(max_tokens=5)),
                engine.generate(prompt, SamplingParams(max_tokens=5)),
                engine.generate("short", SamplingParams(max_tokens=5)),
            )
        assert list(result.token_ids) == Oracle().answer(prompt, 5) == list(again.token_ids)
        ids = ToyTokenizer().encode("short")
        assert list(short.token_ids) == Oracle().answer(ids, 5)

    run_virtual(scenario())
