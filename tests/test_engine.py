"""The whole engine in virtual time: every actor, the oracle device, no model."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from stepahead import (
    ConfigError,
    Engine,
    EngineConfig,
    EngineDead,
    EngineOverloaded,
    FinishReason,
    RequestRejected,
    SamplingParams,
)
from stepahead.actors.backend import Backend, open_backend
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import Deadlock, run_virtual
from stepahead.gpu.device import DeviceFacts, StepAddress
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.messages import RequestFailed, RowFailed, StepDone, StepFailed, StepPlan, frozen_ints

from .engines import inline, is_empty, make_config, make_device, make_engine, settle, virtual

T = TypeVar("T")


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 20, **options})


def spoken(prompt: str, count: int, oracle: Oracle | None = None) -> str:
    """What the oracle says to a prompt."""
    ids = ToyTokenizer().encode(prompt)
    return ToyTokenizer().decode((oracle or Oracle()).answer(ids, count))


# Answers


@virtual
async def test_an_answer_is_what_the_oracle_says() -> None:
    async with make_engine() as engine:
        result = await engine.generate("hello", params(max_tokens=12))

    assert result.text == spoken("hello", 12)
    assert len(result.token_ids) == result.usage.completion_tokens == 12
    assert result.usage.prompt_tokens == 5
    assert result.finish_reason is FinishReason.LENGTH


@virtual
async def test_joined_deltas_are_the_answer_and_exactly_one_is_the_last() -> None:
    async with make_engine() as engine:
        deltas = [delta async for delta in engine.stream("hello", params())]

    assert "".join(delta.text for delta in deltas) == spoken("hello", 20)
    assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [
        True
    ]
    assert deltas[-1].usage is not None
    assert len(deltas) == 20


@virtual
async def test_a_slow_reader_gets_merged_deltas_and_loses_nothing() -> None:
    async with make_engine() as engine:
        texts = []
        async for delta in engine.stream("hello", params()):
            texts.append(delta.text)
            await settle(engine, steps=5)

    assert "".join(texts) == spoken("hello", 20)
    assert len(texts) < 10


@virtual
async def test_many_at_once_each_get_their_own() -> None:
    async with make_engine() as engine:
        results = await asyncio.gather(
            *(engine.generate(f"prompt {i} " * (i % 7 + 1), params()) for i in range(40))
        )
        assert is_empty(engine)

    for i, result in enumerate(results):
        assert result.text == spoken(f"prompt {i} " * (i % 7 + 1), 20)


@virtual
async def test_an_eos_ends_the_answer_and_has_no_text() -> None:
    oracle = Oracle(eos_every=5)
    async with make_engine(oracle=oracle) as engine:
        result = await engine.generate("abc", params(max_tokens=100))

    assert result.finish_reason is FinishReason.STOP
    assert result.token_ids[-1] == 256
    assert result.stop_reason is None
    assert result.text == ToyTokenizer().decode(result.token_ids[:-1])


@virtual
async def test_an_eos_as_the_last_allowed_token_is_a_stop() -> None:
    """Field case 023."""
    oracle = Oracle(eos_every=5)
    async with make_engine(oracle=oracle) as engine:
        first = await engine.generate("abc", params(max_tokens=100))
        again = await engine.generate("abc", params(max_tokens=len(first.token_ids)))

    assert again.finish_reason is FinishReason.STOP
    assert again.text == first.text


@virtual
async def test_ignored_eos_is_an_ordinary_token() -> None:
    async with make_engine(oracle=Oracle(eos_every=5)) as engine:
        result = await engine.generate("abc", params(max_tokens=50, ignore_eos=True))

    assert result.finish_reason is FinishReason.LENGTH
    assert 256 in result.token_ids


@virtual
async def test_a_stop_id_is_named_and_has_no_text() -> None:
    answer = spoken("hello", 20)
    stop_id = ord(answer[6])
    end = answer.index(answer[6])
    async with make_engine() as engine:
        result = await engine.generate("hello", params(stop_token_ids=(stop_id,)))

    assert result.text == answer[:end]
    assert result.stop_reason == stop_id
    assert result.token_ids[-1] == stop_id


@virtual
async def test_a_stop_string_ends_the_text_and_frees_the_blocks_within_two_steps() -> None:
    answer = spoken("hello", 40)
    stop = answer[10:13]
    end = answer.index(stop)
    async with make_engine() as engine:
        result = await engine.generate("hello", params(max_tokens=200, stop=(stop,)))
        await settle(engine, steps=2)
        assert is_empty(engine)

    assert result.text == answer[:end]
    assert result.stop_reason == stop
    assert len(result.token_ids) == end + 3
    assert result.usage.completion_tokens == end + 3


@virtual
async def test_a_stop_string_that_the_last_token_completes_beats_the_length() -> None:
    """Rule 26 and field case 022."""
    answer = spoken("hello", 12)
    async with make_engine() as engine:
        result = await engine.generate("hello", params(max_tokens=12, stop=(answer[9:12],)))

    assert result.finish_reason is FinishReason.STOP
    assert result.text == answer[: answer.index(answer[9:12])]


@virtual
async def test_text_held_back_for_a_stop_string_is_shown_at_the_end() -> None:
    """Field case 019."""
    answer = spoken("hello", 12)
    async with make_engine() as engine:
        result = await engine.generate(
            "hello", params(max_tokens=12, stop=(answer[9:12] + "never",))
        )

    assert result.text == answer
    assert result.finish_reason is FinishReason.LENGTH


@virtual
async def test_a_chat_is_written_by_the_template() -> None:
    messages = [{"role": "user", "content": "hi"}]
    async with make_engine() as engine:
        result = await engine.chat(messages, params())
        deltas = [d async for d in engine.stream_chat(messages, params())]

    ids = ToyTokenizer().encode_chat(messages)[0]
    assert list(result.token_ids) == Oracle().answer(ids, 20)
    assert "".join(d.text for d in deltas) == result.text
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.cached_tokens > 0


@virtual
async def test_a_chat_goes_on_with_the_last_message_where_that_is_asked_for() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well "}]
    async with make_engine() as engine:
        result = await engine.chat(messages, params(), continue_final_message=True)

    ids = ToyTokenizer().encode_chat(messages, continue_final_message=True)[0]
    assert list(result.token_ids) == Oracle().answer(ids, 20)


@virtual
async def test_cached_tokens_count_only_what_the_request_found_at_first() -> None:
    """Field case 160: what is found again after a preemption is not a hit."""
    async with make_engine(num_blocks=24, max_model_len=64) as engine:
        results = await asyncio.gather(
            *(
                engine.generate(f"{i} is a prompt of its own", params(max_tokens=40))
                for i in range(4)
            )
        )
        assert engine.stats().preemptions > 0

    assert all(result.usage.cached_tokens == 0 for result in results)
    assert sum(result.timings.preemptions for result in results) > 0


@virtual
async def test_timings_are_those_of_the_engine_clock() -> None:
    async with make_engine(max_num_seqs=1) as engine:
        first, second = await asyncio.gather(
            engine.generate("hello", params(max_tokens=10)),
            engine.generate("world", params(max_tokens=10)),
        )

    assert first.timings.queue_s == 0
    assert first.timings.ttft_s == pytest.approx(0.01)
    assert first.timings.total_s == pytest.approx(0.10)
    assert second.timings.queue_s == pytest.approx(0.10, abs=0.02)


# Leaving


@virtual
async def test_cancelling_the_task_frees_the_blocks_within_one_step() -> None:
    async with make_engine() as engine:
        task = asyncio.create_task(engine.generate("hello", params(max_tokens=200)))
        await settle(engine, steps=5)
        assert not is_empty(engine)

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settle(engine, steps=2)  # what is in flight ends: at most two steps
        assert is_empty(engine)


@virtual
async def test_breaking_out_of_the_stream_gives_the_request_up_at_once() -> None:
    """Field case 104."""
    async with make_engine() as engine:
        async for _ in engine.stream("hello", params(max_tokens=200)):
            break
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stats = engine.stats()
        assert (stats.running, stats.blocks_held) == (0, 0)
        await settle(engine, steps=2)
        assert is_empty(engine)


@virtual
async def test_abort_ends_the_stream_with_what_there_is() -> None:
    """Field case 106."""
    async with make_engine() as engine:
        task = asyncio.create_task(
            engine.generate("hello", params(max_tokens=200), request_id="r1")
        )
        await settle(engine, steps=5)

        await engine.abort("r1")
        result = await task

        assert result.finish_reason is FinishReason.ABORT
        assert spoken("hello", 20).startswith(result.text)
        assert result.text
        await settle(engine, steps=2)
        assert is_empty(engine)
        await engine.abort("r1")
        await engine.abort("never heard of")


@virtual
async def test_an_abort_while_a_long_prompt_is_tokenised_is_not_lost() -> None:
    async def slow(function: Callable[[], T]) -> T:
        await asyncio.sleep(1.0)
        return function()

    async with make_engine(num_blocks=2048, max_model_len=8192, offload=slow) as engine:
        task = asyncio.create_task(
            engine.generate("x" * 3000, params(max_tokens=200), request_id="long")
        )
        await asyncio.sleep(0.5)
        with pytest.raises(RequestRejected, match="live request"):
            await engine.generate("hi", params(), request_id="long")
        await engine.abort("long")
        result = await task

        assert result.finish_reason is FinishReason.ABORT
        assert result.token_ids == ()
        await settle(engine, steps=2)
        assert is_empty(engine)
        assert len(engine._started.streams) == 0


@virtual
async def test_an_id_that_the_engine_gives_never_meets_one_that_a_caller_chose() -> None:
    async with make_engine() as engine:
        chosen = asyncio.create_task(engine.generate("hello", params(), request_id="request-2"))
        await settle(engine)
        given = await engine.generate("world", params())
        await chosen

    assert given.request_id != "request-2"


@virtual
async def test_thousands_of_stop_ids_cost_nobody_else_anything() -> None:
    async with make_engine() as engine:
        other = asyncio.create_task(engine.generate("hello", params(max_tokens=60)))
        many = (*range(300, 512), ord(spoken("world", 20)[7]))
        stopped = await engine.generate("world", params(stop_token_ids=many))
        ledger = engine._started.batcher._ledger
        await other

        assert stopped.stop_reason == many[-1]
        assert len(ledger._stop_ids) <= 4
        assert not ledger._more_stop_ids


@virtual
async def test_a_request_given_up_while_it_waits_is_never_prefilled() -> None:
    async with make_engine(max_num_seqs=1) as engine:
        first = asyncio.create_task(engine.generate("hello", params()))
        second = asyncio.create_task(engine.generate("world", params()))
        await settle(engine)
        second.cancel()
        result = await first

        assert engine.stats().steps_posted == 20
        assert result.text == spoken("hello", 20)


@virtual
async def test_a_stream_closed_while_another_task_waits_for_it_ends_cleanly() -> None:
    """Field case 121."""
    async with make_engine() as engine:
        stream = engine.stream("hello", params(max_tokens=200))
        deltas = []

        async def read() -> None:
            async for delta in stream:
                deltas.append(delta)

        task = asyncio.create_task(read())
        await settle(engine, steps=3)
        await stream.aclose()
        await task

        assert spoken("hello", 20).startswith("".join(d.text for d in deltas))
        await settle(engine, steps=2)
        assert is_empty(engine)


@virtual
async def test_a_stream_closed_while_its_prompt_is_tokenised_is_given_up() -> None:
    may_go_on = asyncio.Event()

    async def slowly(function: Callable[[], Any]) -> Any:
        await may_go_on.wait()
        return function()

    async with make_engine(max_model_len=4096, num_blocks=1024) as engine:
        engine._wiring.intake._offload = slowly  # type: ignore[union-attr]  # it is started
        stream = engine.stream("x" * 3000, params(max_tokens=500))
        task = asyncio.create_task(anext(stream))
        await settle(engine)
        await stream.aclose()
        may_go_on.set()
        await task
        await settle(engine, steps=2)

        assert is_empty(engine)


@virtual
async def test_a_stream_has_one_reader_and_is_read_once() -> None:
    async with make_engine() as engine:
        stream = engine.stream("hello", params())
        task = asyncio.create_task(anext(stream))
        await settle(engine)
        another = asyncio.create_task(anext(stream))
        third = asyncio.create_task(anext(stream))
        await asyncio.wait({another, third})
        assert isinstance(third.exception(), RuntimeError)
        await task

        await stream.result()
        with pytest.raises(RequestFailed, match="read to its end"):
            await stream.result()


@virtual
async def test_a_deadline_ends_the_answer_with_what_there_is() -> None:
    async with make_engine() as engine:
        result = await engine.generate("hello", params(max_tokens=200), deadline=0.105)

    assert result.finish_reason is FinishReason.TIMEOUT
    assert len(result.token_ids) == 10
    assert result.timings.total_s == pytest.approx(0.105, abs=1e-5)


@virtual
async def test_a_queue_timeout_ends_a_request_that_never_started() -> None:
    async with make_engine(max_num_seqs=1) as engine:
        first = asyncio.create_task(engine.generate("hello", params(max_tokens=100)))
        await settle(engine)
        second = await engine.generate("world", params(), queue_timeout=0.05)
        await first

    assert second.finish_reason is FinishReason.TIMEOUT
    assert second.token_ids == ()
    assert second.timings.total_s == pytest.approx(0.05, abs=1e-5)


# Refusals


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("", {}, "the prompt is empty"),
        ([], {}, "the prompt is empty"),
        ("x" * 300, {}, "the prompt has 300 tokens; it may have 255"),
        ([1, 2, 512], {}, "the prompt holds 512"),
        ([1, -1], {}, "the prompt holds -1"),
        ("hi", {"priority": "high"}, "priority is 'high'"),
        ("hi", {"deadline": -1.0}, "deadline is -1.0"),
        ("hi", {"deadline": float("nan")}, "deadline is nan"),
        ("hi", {"queue_timeout": 0}, "queue_timeout is 0"),
        ("hi", {"request_id": ""}, "request_id is ''"),
        (None, {}, "the prompt is None"),
        ({"text": "hi"}, {}, "the prompt"),
        ("hi \ud800", {}, "half of a surrogate pair"),
        (np.array(3), {}, "the prompt is array"),
        ("hi", {"deadline": "5"}, "deadline is '5'"),
        ("hi", {"deadline": np.array([1.0, 2.0])}, "deadline is array"),
        ("hi", {"cache_salt": b"salt"}, "cache_salt is b'salt'"),
    ],
)
def test_a_bad_request_is_refused_alone(prompt: Any, options: dict[str, Any], words: str) -> None:
    async def scenario() -> None:
        async with make_engine() as engine:
            other = asyncio.create_task(engine.generate("hello", params()))
            with pytest.raises(RequestRejected, match=words.replace("(", r"\(")):
                await engine.generate(prompt, params(), **options)
            assert (await other).text == spoken("hello", 20)
            assert is_empty(engine)

    run_virtual(scenario())


@virtual
async def test_parameters_and_messages_of_another_type_are_refused_by_name() -> None:
    async with make_engine() as engine:
        with pytest.raises(RequestRejected, match=r"params is \{'max_tokens': 3\}"):
            await engine.generate("hello", {"max_tokens": 3})  # type: ignore[arg-type]  # on purpose
        with pytest.raises(RequestRejected, match="messages is None"):
            await engine.chat(None)  # type: ignore[arg-type]  # on purpose


@virtual
async def test_more_tokens_at_least_than_there_is_room_for_fill_the_room() -> None:
    async with make_engine() as engine:
        result = await engine.generate([5, 6, 7], SamplingParams(min_tokens=2**40))

    assert len(result.token_ids) == engine.facts.max_model_len - 3


@virtual
async def test_an_out_of_range_stop_id_is_refused_alone() -> None:
    """Field case 028."""
    async with make_engine() as engine:
        with pytest.raises(RequestRejected, match="stop_token_ids holds 519"):
            await engine.generate("hi", params(stop_token_ids=(519,), min_tokens=1))
        assert (await engine.generate("hello", params())).text == spoken("hello", 20)


@virtual
async def test_a_prompt_that_can_never_fit_the_pool_names_the_pool() -> None:
    """Field cases 034 and 035."""
    async with make_engine(num_blocks=8) as engine:
        assert engine.facts.max_model_len == 32
        with pytest.raises(RequestRejected, match="8 KV blocks of 4"):
            await engine.generate("x" * 40, params())
        result = await engine.generate("x" * 30, params())

    assert result.finish_reason is FinishReason.LENGTH
    assert len(result.token_ids) == 2  # field case 038


@virtual
async def test_the_id_of_a_live_request_is_refused_and_of_a_finished_one_is_not() -> None:
    async with make_engine() as engine:
        task = asyncio.create_task(engine.generate("hello", params(), request_id="r"))
        await settle(engine)
        with pytest.raises(RequestRejected, match="'r' is that of a live request"):
            await engine.generate("world", params(), request_id="r")
        await task
        again = await engine.generate("world", params(), request_id="r")

    assert again.text == spoken("world", 20)


@virtual
async def test_more_requests_than_may_wait_are_refused_with_a_hint() -> None:
    async with make_engine(max_num_seqs=1, max_waiting=2) as engine:
        tasks = [asyncio.create_task(engine.generate("hello", params())) for _ in range(3)]
        await settle(engine)
        with pytest.raises(EngineOverloaded) as refusal:
            await engine.generate("world", params())
        await asyncio.gather(*tasks)
        assert refusal.value.retry_after > 0
        assert (await engine.generate("world", params())).text == spoken("world", 20)


# Faults


class FaultyDevice(SimulatedDevice):
    """Answers some steps with what a test wants."""

    def __init__(self, inner: SimulatedDevice, fault: Callable[[StepPlan, StepDone], Any]) -> None:
        self.__dict__.update(inner.__dict__)
        self._fault = fault

    def run(self, plan: StepPlan) -> StepDone:
        result: StepDone = self._fault(plan, super().run(plan))
        return result


@virtual
async def test_a_failed_row_fails_its_request_and_no_other() -> None:
    def fault(plan: StepPlan, result: StepDone) -> StepDone:
        if plan.step != 5:
            return result
        token_ids = result.token_ids.copy()
        token_ids[0] = -1
        return StepDone(plan.step, frozen_ints(token_ids), (RowFailed(0, "not a number"),))

    device = FaultyDevice(make_device(make_config()), fault)
    async with make_engine(device=device) as engine:
        first = asyncio.create_task(engine.generate("hello", params()))
        second = asyncio.create_task(engine.generate("world", params()))
        with pytest.raises(RequestFailed, match="not a number") as failure:
            await first
        assert (await second).text == spoken("world", 20)
        assert spoken("hello", 20).startswith(failure.value.text)
        assert is_empty(engine)


@virtual
async def test_a_failed_step_is_made_up_for() -> None:
    def fault(plan: StepPlan, result: StepDone) -> StepDone | StepFailed:
        return StepFailed(plan.step, "out of memory") if plan.step == 5 else result

    device = FaultyDevice(make_device(make_config(steps_in_flight=1)), fault)
    async with make_engine(device=device, steps_in_flight=1) as engine:
        result = await engine.generate("hello", params())
        assert is_empty(engine)

    assert result.text == spoken("hello", 20)


@virtual
async def test_a_dead_actor_reaches_every_waiter_with_its_cause() -> None:
    class Broken:
        def __init__(self, facts: DeviceFacts) -> None:
            self.facts = facts
            self.is_closed = False

        def launch(self, plan: StepPlan, done: StepAddress) -> None:
            raise ZeroDivisionError("the device caught fire")

        def close(self) -> None:
            self.is_closed = True

    device = Broken(make_device(make_config()).facts)
    async with make_engine(device=device) as engine:
        tasks = [asyncio.create_task(engine.generate("hello", params())) for _ in range(3)]
        failures = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(EngineDead, match="caught fire"):
            await engine.generate("hello", params())
        health = await engine.health()

    assert all(isinstance(failure, EngineDead) for failure in failures)
    assert health.state == "dead"
    assert "caught fire" in str(health.cause)
    assert device.is_closed


# Life


@virtual
async def test_closing_twice_and_from_another_task_works() -> None:
    engine = make_engine()
    await engine.start()
    await asyncio.create_task(engine.close())
    await engine.close()

    with pytest.raises(EngineDead, match="closed"):
        await engine.generate("hello", params())


@virtual
async def test_closing_ends_what_still_runs() -> None:
    engine = make_engine()
    await engine.start()
    task = asyncio.create_task(engine.generate("hello", params(max_tokens=200)))
    await settle(engine, steps=3)

    await engine.close()

    with pytest.raises(EngineDead, match="closed"):
        await task


def test_an_engine_closed_while_its_model_loads_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async def slowly(config: EngineConfig, num_slots: int, _: object) -> Backend:
            await asyncio.sleep(1)
            return await open_backend(config, num_slots)

        monkeypatch.setattr("stepahead.actors.engine.open_backend", slowly)
        engine = Engine(make_config(), offload=inline)
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0.5)
        await engine.close()

        with pytest.raises(EngineDead, match="closed while it started"):
            await starting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(scenario())


@virtual
async def test_two_engines_share_a_loop() -> None:
    async with make_engine() as one, make_engine(oracle=Oracle(eos_every=5)) as two:
        first, second = await asyncio.gather(
            one.generate("hello", params()), two.generate("hello", params())
        )

    assert first.text == spoken("hello", 20)
    assert second.finish_reason is FinishReason.STOP


@virtual
async def test_the_bodys_own_exception_passes_unchanged() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with make_engine():
            raise KeyError("mine")


def test_an_engine_of_another_loop_says_so() -> None:
    """Field cases 112 and 113."""
    engine = Engine(make_config(), offload=inline)
    with asyncio.Runner() as first:
        first.run(engine.start())
        with asyncio.Runner() as second, pytest.raises(ConfigError, match="another event loop"):
            second.run(engine.generate("hello", params()))
        first.run(engine.close())


@virtual
async def test_an_engine_that_was_not_started_says_so() -> None:
    with pytest.raises(ConfigError, match="not been started"):
        await make_engine().generate("hello")


@virtual
async def test_a_paused_engine_completes_what_is_in_flight_and_goes_on_later() -> None:
    async with make_engine() as engine:
        task = asyncio.create_task(engine.generate("hello", params()))
        await settle(engine, steps=4)
        await engine.pause()
        await settle(engine, steps=10)
        stats = engine.stats()
        await settle(engine, steps=10)
        assert engine.stats() == stats
        assert stats.steps_posted == stats.steps_done < 10
        expired = await engine.generate("world", params(), deadline=0.05)
        await engine.resume()

        assert (await task).text == spoken("hello", 20)
        assert expired.finish_reason is FinishReason.TIMEOUT


@virtual
async def test_a_cache_reset_makes_the_next_prompt_start_afresh() -> None:
    async with make_engine() as engine:
        await engine.generate("hello world", params())
        again = await engine.generate("hello world", params())
        await engine.reset_prefix_cache()
        running = asyncio.create_task(engine.generate("hello world", params(max_tokens=60)))
        await settle(engine, steps=5)
        await engine.reset_prefix_cache()
        afresh = await running

    assert again.usage.cached_tokens == 8
    assert afresh.usage.cached_tokens == 0
    assert afresh.text == spoken("hello world", 60)


@virtual
async def test_health_and_stats_tell_what_runs() -> None:
    async with make_engine() as engine:
        task = asyncio.create_task(engine.generate("hello", params(max_tokens=100)))
        await settle(engine, steps=4)
        health, stats = await engine.health(), engine.stats()
        await task
        idle = await engine.health()

    assert health.state == "running"
    assert health.steps_in_flight == 2
    assert health.seconds_since_progress <= 0.0101
    assert (stats.running, stats.waiting) == (1, 0)
    assert stats.blocks_held > 0
    assert idle.seconds_since_progress == 0


def test_virtual_time_reports_a_deadlock() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(wait_for_nothing())


# Overlap


class Rendezvous(SimulatedDevice):
    """Finishes a step only once the next one has been launched; the last needs no next."""

    def __init__(self, inner: SimulatedDevice, last_step: int) -> None:
        self.__dict__.update(inner.__dict__)
        self._last_step = last_step
        self.launched: list[int] = []
        self.finished_before_launch_of: dict[int, int] = {}

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        self.launched.append(plan.step)
        self.finished_before_launch_of[plan.step] = plan.step - 1 - len(self._queue)
        self._queue.append((plan, done))
        if len(self._queue) == 2:
            self._call_later(0.01, self._finish_oldest)
        if plan.step == self._last_step:
            self._call_later(0.03, self._finish_oldest)

    def _finish_oldest(self) -> None:
        plan, done = self._queue.popleft()
        done(self.run(plan))


@virtual
async def test_step_n_plus_1_is_launched_before_step_n_is_done() -> None:
    config = make_config()
    device = Rendezvous(make_device(config), last_step=20)
    async with make_engine(device=device) as engine:
        result = await engine.generate("hello", params())

    assert result.text == spoken("hello", 20)
    assert device.launched == list(range(1, 21))
    assert all(
        done == step - 2 for step, done in device.finished_before_launch_of.items() if step > 1
    )


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3, 4])
def test_the_number_of_steps_in_flight_changes_nothing(steps_in_flight: int) -> None:
    async def scenario() -> None:
        async with make_engine(
            steps_in_flight=steps_in_flight, oracle=Oracle(eos_every=30), num_blocks=40
        ) as engine:
            results = await asyncio.gather(
                *(engine.generate(f"prompt {i}", params(max_tokens=60)) for i in range(12))
            )
            assert is_empty(engine)
        for i, result in enumerate(results):
            expected = Oracle(eos_every=30).answer(
                ToyTokenizer().encode(f"prompt {i}"), 60, stops=tuple(engine.facts.eos_token_ids)
            )
            assert list(result.token_ids) == expected

    run_virtual(scenario())
