"""Random lives of the whole engine: the five actors in virtual time, callers of every kind.

A seed gives the whole run. Callers read quickly or slowly, leave, cancel or abort; requests have
priorities, deadlines, stop strings and shared prefixes; the device fails rows and steps.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from stepahead import Engine, EngineOverloaded, FinishReason, RequestFailed, SamplingParams
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.messages import StepFailed, StepPlan

from .batching import with_failed_row
from .drafters import ScriptedDrafter
from .engines import is_empty, is_said_by, make_config, make_device, make_engine, settle

FAMILIES = [f"family {name} shares a rather long beginning: " for name in ("one", "two", "three")]


class UnreliableDevice(SimulatedDevice):
    """Now and then a row comes back useless, or a step and those behind it give nothing."""

    def __init__(self, inner: SimulatedDevice, rng: random.Random) -> None:
        self.__dict__.update(inner.__dict__)
        self._random = rng
        self._doomed: set[int] = set()

    def run(self, plan: StepPlan) -> Any:
        if self._random.random() < 0.005:
            self._doomed.update(queued.step for queued, _ in self._queue)
            self._doomed.add(plan.step)
        if plan.step in self._doomed:
            self.skip(plan)
            return StepFailed(plan.step, "out of memory")
        result = super().run(plan)
        assert not result.failed, result.failed
        if self._random.random() < 0.01 and len(result.token_ids):
            return with_failed_row(
                plan, result, int(self._random.choice(plan.samples.nonzero()[0]))
            )
        return result


class Life:
    """One engine, its callers, and what became of each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.oracle = Oracle(eos_every=pick([0, 15, 60]))
        self.options: dict[str, Any] = {
            "num_blocks": pick([40, 60, 256]),
            "max_model_len": 128,
            "max_num_seqs": pick([2, 4, 8]),
            "max_num_batched_tokens": pick([8, 64]),
            "steps_in_flight": pick([1, 2, 2, 3, 4]),
            "prefix_caching": pick([True, True, False]),
            "max_waiting": pick([4, 100]),
            "ageing": pick([None, 0.5]),
            "prefix_ttl": pick([None, None, 0.3]),
            "num_host_blocks": random.Random(~seed).choice([None, 0, 4, 100]),
        }
        kinds = pick([None, None, ("right", "partly", "none"), ("random", "wrong", "right")])
        self.drafter = None if kinds is None else ScriptedDrafter(self.oracle, kinds)
        self.oracles = [self.oracle]  # of the weights that were loaded, one after the other
        self.is_reliable = pick([True, True, False])
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        config = make_config(**self.options)
        device = make_device(config, oracle=self.oracle)
        if not self.is_reliable:
            device = UnreliableDevice(device, self.random)
        async with make_engine(device=device, drafter=self.drafter, **self.options) as engine:
            callers = [self._call(engine, i) for i in range(40)]
            await asyncio.gather(*callers, *(self._operate(engine) for _ in range(3)))
            await settle(engine, steps=6)
            assert is_empty(engine), "something leaked"
            stats = engine.stats()
        admitted = sum(self.outcomes.values()) - self.outcomes["refused"]
        assert stats.requests_finished == admitted, "admitted is not finished plus given up"

    async def _call(self, engine: Engine, number: int) -> None:
        rng = random.Random(self.random.random())
        await asyncio.sleep(rng.random() * 2)
        prompt = rng.choice([*FAMILIES, ""]) + "x" * rng.randint(1, 60) + str(number)
        ids = ToyTokenizer().encode(prompt)
        params = SamplingParams(
            max_tokens=rng.randint(1, 60), stop=rng.choice([(), (), ("ab", "q"), ("~~~",)])
        )
        options: dict[str, Any] = {
            "priority": rng.choice([0, 0, 0, 1, -1]),
            "deadline": rng.choice([None] * 6 + [0.3]),
            "queue_timeout": rng.choice([None] * 6 + [0.2]),
            "cache_salt": rng.choice([None, None, "other"]),
            "request_id": f"request {number}",
        }
        behaviour = rng.choice(["read", "read", "slow", "leave", "cancel", "abort"])
        try:
            reason, said, text = await self._behave(engine, behaviour, ids, params, options, rng)
        except EngineOverloaded:
            self.outcomes["refused"] += 1
            return
        except RequestFailed as failure:
            self.outcomes["failed"] += 1
            if self.is_reliable:
                raise AssertionError("a request failed on a reliable device") from failure
            return
        self.outcomes[str(reason)] += 1
        self._check(ids, params, reason, said, text)

    async def _operate(self, engine: Engine) -> None:
        """An operator pins what callers ask for, resets the cache under them, loads other weights
        or drains the engine for a while."""
        rng = random.Random(self.random.random())
        await asyncio.sleep(rng.random() * 2)
        what = rng.random()
        if what < 0.2:
            await engine.reset_prefix_cache()
        elif what < 0.4:
            source = f"weights {len(self.oracles)}"
            self.oracles.append(self.oracle.with_weights(source))
            await engine.reload_weights(source)
        elif what < 0.6:
            if await engine.drain(rng.choice([None, 0.1, 1.0])):
                assert (await engine.health()).live_requests == 0
            await engine.resume()
        elif self.options["prefix_caching"]:
            salt, ttl = rng.choice([None, "other"]), rng.choice([None, 0.5])
            async with await engine.pin_prefix(rng.choice(FAMILIES), cache_salt=salt, ttl=ttl):
                await asyncio.sleep(rng.random())

    async def _behave(
        self,
        engine: Engine,
        behaviour: str,
        ids: list[int],
        params: SamplingParams,
        options: dict[str, Any],
        rng: random.Random,
    ) -> tuple[FinishReason | None, list[int], str]:
        patience = rng.random()
        if behaviour == "cancel":
            task = asyncio.create_task(engine.generate(ids, params, **options))
            done, _ = await asyncio.wait({task}, timeout=patience)
            if not done:
                task.cancel()
                await asyncio.wait({task})
            if task.cancelled():
                return None, [], ""
            result = task.result()
            return result.finish_reason, list(result.token_ids), result.text
        said: list[int] = []
        text = ""
        async for delta in engine.stream(ids, params, **options):
            said += delta.token_ids
            text += delta.text
            if behaviour == "slow":
                await asyncio.sleep(rng.random() * 0.2)
            elif behaviour == "leave" and len(said) > 40 * patience:
                return delta.finish_reason, said, text
            elif behaviour == "abort" and len(said) > 40 * patience:
                await engine.abort(options["request_id"])
            if delta.finish_reason is FinishReason.ERROR:
                raise RequestFailed(str(delta.stop_reason), text)
        return delta.finish_reason, said, text

    def _check(
        self,
        ids: list[int],
        params: SamplingParams,
        reason: FinishReason | None,
        said: list[int],
        text: str,
    ) -> None:
        """What was said is what the oracle says, as far as it went."""
        assert params.max_tokens is not None
        limit = min(params.max_tokens, 128 - len(ids))
        assert is_said_by(self.oracles, ids, said), "another request's tokens"
        shown = ToyTokenizer().decode(said)
        if reason is FinishReason.LENGTH:
            assert len(said) == limit
        if reason is FinishReason.STOP and said[-1] not in (256, 258):
            assert any(stop in shown for stop in params.stop)
            assert not any(stop in text for stop in params.stop)
        elif reason is not None:
            assert text == shown


@pytest.mark.parametrize("seed", range(40))
def test_callers_of_every_kind_get_their_own_and_nothing_leaks(seed: int) -> None:
    run_virtual(Life(seed).run())  # asserts


def test_the_random_lives_see_every_outcome() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        life = Life(seed)
        run_virtual(life.run())
        seen += life.outcomes

    assert {"stop", "length", "abort", "timeout", "refused", "None"} <= set(seen)
