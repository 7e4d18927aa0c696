"""Other weights for a live engine: what was said is kept, and nothing else that was computed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepahead import ConfigError, EngineDead, FinishReason, ModelError, SamplingParams
from stepahead.actors.recording import read_recording, replay
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.device import DeviceFacts, LoadedAddress, StepAddress
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import LOAD_S, SimulatedDevice
from stepahead.messages import PrefixAccount, PrefixEnd, StepPlan, WeightsLoaded

from .batching import World, make_limits
from .engines import is_empty, is_said_by, make_config, make_device, make_engine, settle, virtual
from .test_pool import tokens

OLD, NEW = Oracle(), Oracle().with_weights("new")


def params(max_tokens: int = 40, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **options)


def ids(prompt: str) -> list[int]:
    return ToyTokenizer().encode(prompt)


# The pure cores


def test_no_step_is_planned_from_the_wish_until_the_weights_are_there() -> None:
    world = World()
    world.request(1, tokens(0, 6), max_tokens=20)
    world.plan()
    world.plan()

    world.want_weights("new")

    assert world.plan() is None
    assert world.batcher.weights.begin_loading() is None  # steps are in flight
    world.complete()
    world.complete()
    assert world.plan() is None
    world.load_weights()
    assert world.plan() is None
    world.load_weights()
    assert world.plan() is not None


def test_sequences_keep_their_tokens_and_places_and_are_computed_anew() -> None:
    world = World(limits=make_limits(max_num_seqs=2))
    requests = [world.request(i, tokens(100 * i, 10), max_tokens=20) for i in range(4)]
    for _ in range(6):
        world.plan()
        world.complete()
    world.want_weights("new")
    world.finish_weights()

    plan = world.plan()

    assert plan is not None
    assert [row.token_ids[:10].tolist() for row in plan.new_rows] == [
        tokens(0, 10),
        tokens(100, 10),
    ]
    assert [len(row.token_ids) for row in plan.new_rows] == [16, 16]
    assert plan.starts.tolist() == [0, 0]
    world.run()
    assert all(world.said[r.serial] == world.answer(r) for r in requests)
    assert world.said[0] != OLD.answer(tokens(0, 10), 20)
    assert world.preemptions == 0  # nobody took their blocks
    world.assert_is_empty()


def test_aborts_and_new_requests_between_wish_and_weights_are_served() -> None:
    world = World()
    world.request(1, tokens(0, 6), max_tokens=20)
    world.plan()
    world.want_weights("new")
    world.complete()
    world.load_weights()
    world.batcher.abort(1)
    world.request(2, tokens(0, 6), max_tokens=5)
    world.load_weights()
    world.run()

    assert world.ended[1].reason is FinishReason.ABORT
    assert world.said[2] == NEW.answer(tokens(0, 6), 5) != OLD.answer(tokens(0, 6), 5)


# A whole engine


@virtual
async def test_live_requests_go_on_with_the_new_weights_from_where_they_are() -> None:
    async with make_engine(oracle=OLD, max_num_seqs=4) as engine:
        prompts = [f"{i} is a prompt" for i in range(8)]
        calls = [asyncio.create_task(engine.generate(p, params())) for p in prompts]
        await settle(engine, steps=20)
        await engine.reload_weights("new")
        results = await asyncio.gather(*calls)
        assert is_empty(engine)

    for prompt, result in zip(prompts, results, strict=True):
        assert len(result.token_ids) == 40
        assert is_said_by([OLD, NEW], ids(prompt), result.token_ids)
    first = [list(r.token_ids) for r in results[:4]]
    assert all(said != OLD.answer(ids(p), 40) for p, said in zip(prompts, first, strict=False))
    assert all(said[:15] == OLD.answer(ids(p), 15) for p, said in zip(prompts, first, strict=False))


@virtual
async def test_no_prefix_outlives_its_weights() -> None:
    async with make_engine(oracle=OLD) as engine:
        await engine.generate("a prompt of some length", params(4))
        await engine.reload_weights("new")
        result = await engine.generate("a prompt of some length", params(4))
        again = await engine.generate("a prompt of some length", params(4))
        facts = engine.facts

    assert result.usage.cached_tokens == 0
    assert result.usage.prefix == PrefixAccount(PrefixEnd.RESET)
    assert list(result.token_ids) == NEW.answer(ids("a prompt of some length"), 4)
    assert again.usage.cached_tokens > 0
    assert facts.model == "new"


@virtual
async def test_aborts_deadlines_and_new_requests_do_not_wait_for_weights() -> None:
    async with make_engine(oracle=OLD) as engine:
        aborted = asyncio.create_task(engine.generate("one", params(99), request_id="one"))
        timed = asyncio.create_task(engine.generate("two", params(99), deadline=0.2))
        await settle(engine, steps=5)
        loading = asyncio.create_task(engine.reload_weights("new"))
        await settle(engine, steps=5)
        begun = asyncio.get_running_loop().time()
        late = asyncio.create_task(engine.generate("three", params(3)))
        await engine.abort("one")

        assert (await aborted).finish_reason is FinishReason.ABORT
        assert (await timed).finish_reason is FinishReason.TIMEOUT
        assert asyncio.get_running_loop().time() - begun < 0.2
        assert not loading.done()
        assert (await late).token_ids == tuple(NEW.answer(ids("three"), 3))


@virtual
async def test_reloads_come_one_after_the_other_and_survive_their_callers() -> None:
    sources = ["a", "b", "c"]
    oracles = [OLD, *(OLD.with_weights(source) for source in sources)]
    async with make_engine(oracle=OLD, max_model_len=512) as engine:
        call = asyncio.create_task(engine.generate("long", params(300)))
        await settle(engine, steps=10)
        reloads = [asyncio.create_task(engine.reload_weights(source)) for source in sources]
        await asyncio.sleep(LOAD_S / 2)
        reloads[0].cancel()
        await asyncio.gather(*reloads, return_exceptions=True)
        await settle(engine, steps=10)
        assert engine.facts.model == "c"
        result = await call

    assert is_said_by(oracles, ids("long"), result.token_ids)
    assert reloads[0].cancelled()


@virtual
async def test_a_paused_engine_loads_weights_and_stays_paused() -> None:
    async with make_engine(oracle=OLD) as engine:
        call = asyncio.create_task(engine.generate("one", params(20)))
        await settle(engine, steps=5)
        await engine.pause()
        await engine.reload_weights("new")
        steps = engine.stats().steps_posted
        await settle(engine, steps=20)
        assert engine.stats().steps_posted == steps
        await engine.resume()
        assert is_said_by([OLD, NEW], ids("one"), (await call).token_ids)


@virtual
async def test_a_device_that_cannot_load_weights_refuses_before_anybody_is_disturbed() -> None:
    class Fixed:
        """A simulated device without the hook."""

        def __init__(self, inner: SimulatedDevice) -> None:
            self._inner = inner

        @property
        def facts(self) -> DeviceFacts:
            return self._inner.facts

        def launch(self, plan: StepPlan, done: StepAddress) -> None:
            self._inner.launch(plan, done)

        def close(self) -> None:
            self._inner.close()

    device = Fixed(make_device(make_config(), oracle=OLD))
    async with make_engine(device=device) as engine:
        call = asyncio.create_task(engine.generate("one", params(20)))
        await settle(engine, steps=5)
        with pytest.raises(ConfigError, match="cannot load other weights"):
            await engine.reload_weights("new")
        assert (await call).token_ids == tuple(OLD.answer(ids("one"), 20))


class Forgetful(SimulatedDevice):
    """A device whose weights are never there."""

    def __init__(self, inner: SimulatedDevice) -> None:
        self.__dict__.update(inner.__dict__)

    def load_weights(self, source: str, done: LoadedAddress) -> None:
        self._call_later(0.1, lambda: done(WeightsLoaded(source, f"{source} is not a model")))


@virtual
async def test_weights_that_cannot_be_loaded_change_nothing() -> None:
    device = Forgetful(make_device(make_config(), oracle=OLD))
    async with make_engine(device=device) as engine:
        call = asyncio.create_task(engine.generate("one", params(20)))
        await settle(engine, steps=5)
        with pytest.raises(ModelError, match="new is not a model"):
            await engine.reload_weights("new")
        assert (await call).token_ids == tuple(OLD.answer(ids("one"), 20))


@virtual
async def test_an_engine_that_closes_meanwhile_tells_whoever_waits_for_weights() -> None:
    async with make_engine(oracle=OLD) as engine:
        reloads = [asyncio.create_task(engine.reload_weights(source)) for source in "ab"]
        await asyncio.sleep(LOAD_S / 2)
    for reload in reloads:
        with pytest.raises(EngineDead, match="closed"):
            await reload


def test_a_weight_reset_replays_from_a_recording(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "recording"
        async with make_engine(oracle=OLD, record=path, check_invariants=True) as engine:
            calls = [engine.generate(f"{i} is a prompt", params()) for i in range(10)]
            live = asyncio.gather(*calls)
            await settle(engine, steps=10)
            await engine.reload_weights("new")
            await live

    run_virtual(run())
    replayed = replay(read_recording(tmp_path / "recording"))

    assert replayed.difference is None
    assert replayed.steps > 40
