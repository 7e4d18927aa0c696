"""Hundreds of streams at once: the device comes first, and nobody holds the event loop up."""

import asyncio
from typing import Any

import pytest

from stepahead import SamplingParams
from stepahead.actors.detokenizer import SLICE
from stepahead.actors.streams import OutputStreams
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.device import StepAddress
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice, StepTime
from stepahead.messages import Delta, StepDone, StepFailed, StepPlan

from .engines import make_config, make_device, make_engine

MANY = 200
INSTANT = StepTime(
    overhead_s=0, weight_bytes=0, kv_bytes_per_token=0, flops_per_token=0, flops_rate=1
)
LIMITS: dict[str, Any] = {
    "num_blocks": 4096,
    "max_model_len": 64,
    "max_num_seqs": MANY,
    "max_num_batched_tokens": 4096,
}


class Watch:
    """Counts the deltas that are shown."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.shown = 0
        push = OutputStreams.push

        def counting(streams: OutputStreams, serial: int, delta: Delta) -> None:
            self.shown += 1
            push(streams, serial, delta)

        patch.setattr(OutputStreams, "push", counting)


class HurriedDevice(SimulatedDevice):
    """Takes no time at all, and notes how many deltas were shown before it had its next step."""

    def __init__(self, inner: SimulatedDevice, watch: Watch) -> None:
        self.__dict__.update(inner.__dict__)
        self._step_time = INSTANT
        self._watch = watch
        self._shown_when_done: dict[int, int] = {}
        self.shown_meanwhile: list[int] = []

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        before = self._shown_when_done.get(plan.step - 2)
        if before is not None:
            self.shown_meanwhile.append(self._watch.shown - before)

        def noted(result: StepDone | StepFailed) -> None:
            self._shown_when_done[result.step] = self._watch.shown
            done(result)

        super().launch(plan, noted)


async def ask_all(engine: Any, max_tokens: int) -> list[Any]:
    params = SamplingParams(max_tokens=max_tokens)
    calls = (engine.generate(f"{i} asks", params) for i in range(MANY))
    return list(await asyncio.gather(*calls))


def test_the_device_has_its_next_step_before_the_last_one_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        watch = Watch(monkeypatch)
        device = HurriedDevice(make_device(make_config(**LIMITS)), watch)
        async with make_engine(device=device, **LIMITS) as engine:
            results = await ask_all(engine, max_tokens=30)

        assert len(device.shown_meanwhile) > 20
        assert max(device.shown_meanwhile) <= 2 * SLICE
        assert watch.shown < 30 * MANY, "readers that are behind get several tokens at once"
        for i, result in enumerate(results):
            ids = ToyTokenizer().encode(f"{i} asks")
            assert list(result.token_ids) == Oracle().answer(ids, 30)

    run_virtual(scenario())


def test_no_turn_of_the_event_loop_shows_more_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case 115."""

    async def scenario() -> None:
        watch = Watch(monkeypatch)
        per_turn: list[int] = []

        async def tick() -> None:
            while True:
                before = watch.shown
                await asyncio.sleep(0)
                per_turn.append(watch.shown - before)

        async with make_engine(**LIMITS) as engine:
            asking = asyncio.create_task(ask_all(engine, max_tokens=3))
            await asyncio.sleep(0.005)
            ticking = asyncio.create_task(tick())
            while watch.shown < MANY:
                await asyncio.sleep(0)
                engine._loop.advance(0.0001)  # type: ignore[union-attr]  # a virtual loop
            ticking.cancel()
            await asking

        assert max(per_turn) <= SLICE

    run_virtual(scenario())
