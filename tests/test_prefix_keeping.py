"""How long cached content stays findable: pins, and a time to live."""

import asyncio
from pathlib import Path

import pytest

from stepahead import ConfigError, Engine, EngineConfig, EngineDead, RequestRejected, SamplingParams
from stepahead.actors.recording import read_recording, replay
from stepahead.actors.virtual_time import run_virtual
from stepahead.kvpool import prefix_root
from stepahead.kvpool.prefix import Previous
from stepahead.messages import (
    ForgetUnused,
    FullBlocks,
    PinPrefix,
    PrefixAccount,
    PrefixEnd,
    PublishBlocks,
    UnpinPrefix,
    UnpublishBlocks,
    frozen_ints,
    frozen_longs,
)

from .engines import make_engine, virtual
from .test_pool import PoolUser, tokens
from .test_prefix_account import ask, cache

ONE = SamplingParams(max_tokens=1)


def pin(user: PoolUser, prompt: list[int], *, number: int = 1, salt: bytes = b"") -> None:
    user.pool.pin(PinPrefix(number, prefix_root(salt), frozen_ints(prompt)))
    user.pool.check()


def unpin(user: PoolUser, number: int = 1, *, now_ns: int = 0) -> None:
    user.pool.unpin(UnpinPrefix(number), now_ns)
    user.pool.check()


def pass_time(user: PoolUser, now_ns: int, ttl_ns: int = 100) -> None:
    user.pool.forget_unused(ForgetUnused(user.posted, user.done, now_ns, now_ns - ttl_ns))
    user.pool.check()


# Pins


def test_pinned_content_outlives_younger_content() -> None:
    user = PoolUser(8)
    cache(user, tokens(0, 8))
    pin(user, tokens(0, 8))
    cache(user, tokens(100, 16))
    ask(user, tokens(200, 24))

    assert ask(user, tokens(0, 9)).cached_tokens == 8
    assert ask(user, tokens(100, 17)).account == PrefixAccount(PrefixEnd.EVICTED)


def test_a_pin_keeps_what_is_computed_only_later() -> None:
    user = PoolUser(8)
    pin(user, tokens(0, 8))
    cache(user, tokens(0, 8))
    cache(user, tokens(100, 24))

    assert ask(user, tokens(0, 9)).cached_tokens == 8


def test_only_pins_that_wait_for_it_look_at_what_is_published() -> None:
    user = PoolUser(8)
    for number in range(100):
        pin(user, tokens(1000 * number, 8), number=number)
    user.admit(0, tokens(0, 8))
    index, looked = user.pool._cache._index, list[bytes]()
    find_after = index.find_after

    def watched(previous: Previous, piece: bytes) -> int | None:
        looked.append(piece)
        return find_after(previous, piece)

    index.find_after = watched  # type: ignore[method-assign]  # it watches, and passes on

    columns = (frozen_longs([0]), frozen_ints([0]), frozen_ints([2]))
    full = FullBlocks(0, *columns, frozen_ints(tokens(0, 8)))
    user.pool.publish(PublishBlocks(0, 0, full))

    assert len(looked) == 2


def test_a_pin_keeps_what_it_lost_when_that_is_computed_again() -> None:
    user = PoolUser(6)
    cache(user, tokens(0, 12))
    pin(user, tokens(0, 12))
    pin(user, tokens(0, 4), number=2)
    ask(user, tokens(100, 24))  # everything is needed for once

    cache(user, tokens(0, 12))
    cache(user, tokens(200, 12))

    assert ask(user, tokens(0, 13)).cached_tokens == 12


def test_an_unpinned_prefix_is_evicted_like_any_other() -> None:
    user = PoolUser(8)
    cache(user, tokens(0, 8))
    pin(user, tokens(0, 8))
    unpin(user)
    unpin(user)  # which is a no-op
    cache(user, tokens(100, 32))

    assert ask(user, tokens(0, 9)).cached_tokens == 0


def test_content_that_two_pins_name_is_kept_until_both_are_gone() -> None:
    user = PoolUser(8)
    cache(user, tokens(0, 12))
    pin(user, tokens(0, 12), number=1)
    pin(user, tokens(0, 8), number=2)
    unpin(user, 1)
    ask(user, tokens(100, 24))

    assert ask(user, tokens(0, 12)).cached_tokens == 8


def test_pins_never_keep_anybody_from_running() -> None:
    """Where nothing else is left, pinned content gives way: its tail first."""
    user = PoolUser(4)
    cache(user, tokens(0, 16))
    pin(user, tokens(0, 16))

    assert user.pool.num_free == 4
    assert ask(user, tokens(100, 8)).block_ids.tolist() != []
    assert ask(user, tokens(0, 9)).cached_tokens == 8


def test_pinned_content_that_was_lost_is_kept_again_when_it_comes_back() -> None:
    user = PoolUser(4)
    cache(user, tokens(0, 8))
    pin(user, tokens(0, 8))
    ask(user, tokens(100, 16))  # takes everything
    assert ask(user, tokens(0, 9)).cached_tokens == 0
    cache(user, tokens(0, 8))
    cache(user, tokens(200, 8))
    ask(user, tokens(300, 8))

    assert ask(user, tokens(0, 9)).cached_tokens == 8


@pytest.mark.parametrize("loss", ["reset", "failed step"])
def test_a_pin_survives_the_loss_of_its_content(loss: str) -> None:
    user = PoolUser(8)
    pin(user, tokens(0, 8))
    user.posted = 1
    user.admit(0, tokens(0, 8))
    user.publish(0, tokens(0, 8), step=1)
    if loss == "reset":
        user.pool.reset_cache()
    else:
        user.pool.unpublish(UnpublishBlocks(1, 0))
    user.pool.check()
    user.release(0, fence=1)
    user.settle(1)
    cache(user, tokens(0, 8))
    ask(user, tokens(100, 24))

    assert ask(user, tokens(0, 9)).cached_tokens == 8


def test_a_pin_holds_for_its_own_salt_only() -> None:
    user = PoolUser(8)
    cache(user, tokens(0, 8), salt=b"a")
    pin(user, tokens(0, 8), salt=b"b")
    cache(user, tokens(100, 32))

    assert ask(user, tokens(0, 9), salt=b"a").cached_tokens == 0


# A time to live


def test_content_that_nobody_used_for_its_time_to_live_is_forgotten() -> None:
    user = PoolUser(8)
    pass_time(user, 1_000)
    cache(user, tokens(0, 8))
    pass_time(user, 1_099)
    assert user.pool.num_cached == 2
    pass_time(user, 1_100)

    assert user.pool.num_cached == 0
    assert ask(user, tokens(0, 9)).account == PrefixAccount(PrefixEnd.EXPIRED)


def test_every_use_starts_the_time_anew() -> None:
    user = PoolUser(8)
    pass_time(user, 0)
    cache(user, tokens(0, 8))
    cache(user, tokens(100, 8))
    pass_time(user, 60)
    ask(user, tokens(0, 9))
    pass_time(user, 120)

    assert ask(user, tokens(0, 9)).cached_tokens == 8
    assert ask(user, tokens(100, 9)).cached_tokens == 0


def test_what_a_sequence_holds_does_not_expire() -> None:
    user = PoolUser(8)
    pass_time(user, 0)
    user.admit(0, tokens(0, 8))
    user.publish(0, tokens(0, 8))
    pass_time(user, 500)
    assert ask(user, tokens(0, 9)).cached_tokens == 8

    user.release(0)
    pass_time(user, 550)

    assert ask(user, tokens(0, 9)).cached_tokens == 8


def test_what_is_pinned_does_not_expire_before_it_is_unpinned() -> None:
    user = PoolUser(8)
    pass_time(user, 0)
    cache(user, tokens(0, 8))
    pin(user, tokens(0, 8))
    pass_time(user, 500)
    unpin(user, now_ns=520)
    pass_time(user, 600)
    assert user.pool.num_cached == 2
    pass_time(user, 620)

    assert user.pool.num_cached == 0


# Of a whole engine


PROMPT = "a prefix that is worth keeping"


async def cached(engine: Engine, prompt: str = PROMPT, **options: str) -> int:
    result = await engine.generate(prompt, ONE, **options)  # type: ignore[arg-type]  # a salt
    return result.usage.cached_tokens


async def fill(engine: Engine) -> None:
    """Other prompts, as many as the pool holds."""
    for i in range(8):
        await engine.generate(f"{i} " + "other" * 10, ONE)


@virtual
async def test_a_pinned_prefix_is_found_after_others_have_filled_the_pool() -> None:
    async with make_engine(num_blocks=64) as engine:
        await cached(engine)
        async with await engine.pin_prefix(PROMPT) as pin:
            assert pin.num_tokens == len(PROMPT) // 4 * 4
            await fill(engine)
            assert await cached(engine) == (len(PROMPT) - 1) // 4 * 4
        assert not pin.is_held
        await fill(engine)
        assert await cached(engine) == 0


@virtual
async def test_a_pin_ends_with_its_time_to_live() -> None:
    async with make_engine(num_blocks=64) as engine:
        pin = await engine.pin_prefix(PROMPT, ttl=1.5)
        await cached(engine)
        await fill(engine)
        assert await cached(engine) > 0
        await asyncio.sleep(1.5)
        assert not pin.is_held
        await fill(engine)
        assert await cached(engine) == 0
        await pin.unpin()


@virtual
async def test_a_conversation_is_pinned_as_the_beginning_of_a_longer_one() -> None:
    system = {"role": "system", "content": "You are a rather terse pirate."}
    async with make_engine(num_blocks=64) as engine:
        await engine.pin_prefix([system], cache_salt="tenant")
        chat = [system, {"role": "user", "content": "Hi"}]
        first = await engine.chat(chat, ONE, cache_salt="tenant")
        await fill(engine)
        second = await engine.chat([system, {"role": "user", "content": "Bye"}], ONE)
        third = await engine.chat(
            [system, {"role": "user", "content": "Bye"}], ONE, cache_salt="tenant"
        )

    assert first.usage.cached_tokens == second.usage.cached_tokens == 0
    assert third.usage.cached_tokens >= len(system["content"])


@virtual
async def test_pins_end_with_the_engine() -> None:
    async with make_engine() as engine:
        pin = await engine.pin_prefix(PROMPT, ttl=1e6)

    assert not pin.is_held


@virtual
async def test_nothing_is_pinned_in_an_engine_that_is_over() -> None:
    engine = make_engine()
    async with engine:
        pass

    with pytest.raises(EngineDead, match="closed"):
        await engine.pin_prefix(PROMPT, ttl=1.0)


@virtual
async def test_an_engine_forgets_prefixes_after_their_time_to_live() -> None:
    async with make_engine(prefix_ttl=10.0) as engine:
        await cached(engine)
        await asyncio.sleep(9)
        assert await cached(engine) > 0
        await asyncio.sleep(9)
        assert await cached(engine) > 0
        await asyncio.sleep(11)
        result = await engine.generate(PROMPT, ONE)

    assert result.usage.cached_tokens == 0
    assert result.usage.prefix == PrefixAccount(PrefixEnd.EXPIRED)


@virtual
async def test_an_idle_engine_forgets_prefixes_without_being_asked() -> None:
    async with make_engine(prefix_ttl=10.0) as engine:
        await cached(engine)
        await asyncio.sleep(9)
        assert engine.stats().blocks_cached > 0
        await asyncio.sleep(2)
        assert engine.stats().blocks_cached == 0


@virtual
async def test_what_was_pinned_is_kept_for_its_time_to_live_after_the_pin() -> None:
    async with make_engine(prefix_ttl=10.0) as engine:
        await cached(engine)
        pin = await engine.pin_prefix(PROMPT)
        await asyncio.sleep(50)
        await pin.unpin()
        await asyncio.sleep(9)
        assert await cached(engine) > 0


@virtual
async def test_a_long_answer_leaves_a_prefix_that_is_as_old_as_its_end() -> None:
    async with make_engine(prefix_ttl=1.0, max_model_len=512) as engine:
        await engine.generate(PROMPT, SamplingParams(max_tokens=300, ignore_eos=True))
        await asyncio.sleep(0.5)
        assert await cached(engine) > 0


def test_pins_and_what_expires_replay_from_a_recording(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "recording"
        async with make_engine(num_blocks=64, prefix_ttl=2.0, record=path) as engine:
            for _ in range(3):
                async with await engine.pin_prefix(PROMPT, ttl=1.0):
                    await cached(engine)
                    await fill(engine)
                    assert await cached(engine) > 0
                await asyncio.sleep(1.9)

    run_virtual(run())
    replayed = replay(read_recording(tmp_path / "recording"))

    assert replayed.difference is None
    assert replayed.steps == 30


@virtual
async def test_pins_that_can_never_be_found_are_refused() -> None:
    async with make_engine(max_model_len=64) as engine:
        for prompt, words in [("abc", "at least 4"), ("x" * 100, "it may have 63"), ("", "empty")]:
            with pytest.raises(RequestRejected, match=words):
                await engine.pin_prefix(prompt)
        with pytest.raises(RequestRejected, match="cache_salt is 3"):
            await engine.pin_prefix(PROMPT, cache_salt=3)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(RequestRejected, match="ttl is -1"):
            await engine.pin_prefix(PROMPT, ttl=-1)
    async with make_engine(prefix_caching=False) as engine:
        with pytest.raises(ConfigError, match="prefix_caching is off"):
            await engine.pin_prefix(PROMPT)


@pytest.mark.parametrize("ttl", [0, -1.0, float("nan"), float("inf"), "soon", True])
def test_a_time_to_live_without_meaning_is_refused(ttl: float) -> None:
    with pytest.raises(ConfigError, match="prefix_ttl is"):
        EngineConfig(prefix_ttl=ttl)
