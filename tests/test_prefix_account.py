"""Every request is told how far its prefix was found, and why no further."""

import asyncio
from dataclasses import replace

import pytest
import structlog
from structlog.testing import capture_logs

from stepahead import SamplingParams
from stepahead.actors.virtual_time import run_virtual
from stepahead.kvpool import prefix_root
from stepahead.kvpool.content import token_bytes
from stepahead.kvpool.forgotten import Forgotten
from stepahead.messages import (
    PrefixAccount,
    PrefixEnd,
    SequenceAdmitted,
    UnpublishBlocks,
    Usage,
    frozen_ints,
)

from .batching import BLOCK, World, make_limits, make_request
from .engines import make_engine
from .test_pool import PoolUser, tokens

NEW = PrefixEnd.NEW


def ask(user: PoolUser, prompt: list[int], *, slot: int = 7, salt: bytes = b"") -> SequenceAdmitted:
    """Admit a prompt and let it go at once."""
    answer = user.admit(slot, prompt, salt=salt)
    user.release(slot)
    return answer


def cache(user: PoolUser, prompt: list[int], *, salt: bytes = b"") -> None:
    """Compute a prompt and leave it cached."""
    user.admit(6, prompt, salt=salt)
    user.publish(6, prompt[: len(prompt) // BLOCK * BLOCK])
    user.release(6)


def test_a_prompt_that_was_wholly_cached_says_so() -> None:
    user = PoolUser(16)
    cache(user, tokens(0, 12))

    assert ask(user, tokens(0, 12)).account == PrefixAccount(PrefixEnd.WHOLE)
    assert ask(user, [*tokens(0, 12), 99]).account == PrefixAccount(PrefixEnd.WHOLE)


def test_a_prompt_without_a_full_block_has_nothing_to_find() -> None:
    assert ask(PoolUser(), tokens(0, 4)).account == PrefixAccount(PrefixEnd.SHORT)


@pytest.mark.parametrize("position", range(4, 12))
def test_the_first_token_that_differs_is_named_by_its_position(position: int) -> None:
    user = PoolUser(16)
    cache(user, tokens(0, 12))
    prompt = tokens(0, 13)
    prompt[position] = 99

    answer = ask(user, prompt)

    assert answer.cached_tokens == position // BLOCK * BLOCK
    assert answer.account == PrefixAccount(NEW, position)


def test_the_closest_of_several_continuations_counts() -> None:
    user = PoolUser(32)
    for last in ([8, 9], [5, 8], [5, 6]):
        cache(user, [*tokens(0, 4), 4, *last, 7])

    assert ask(user, [*tokens(0, 4), 4, 5, 6, 99, 0]).account == PrefixAccount(NEW, 7)
    assert ask(user, [*tokens(0, 4), 4, 8, 0, 0, 0]).account == PrefixAccount(NEW, 6)
    assert ask(user, [*tokens(0, 4), 77, 5, 6, 7, 0]).account == PrefixAccount(NEW, 4)


def test_what_nothing_continues_has_no_difference() -> None:
    user = PoolUser(16)
    cache(user, tokens(0, 8))

    answer = ask(user, tokens(0, 13))

    assert answer.cached_tokens == 8
    assert answer.account == PrefixAccount(NEW, None)


def test_evicted_content_is_named() -> None:
    user = PoolUser(8)
    cache(user, tokens(0, 16))
    user.admit(0, tokens(100, 24))  # takes the four blank blocks, and the last two of the cached
    user.release(0)

    answer = ask(user, tokens(0, 17))

    assert answer.cached_tokens == 8
    assert answer.account == PrefixAccount(PrefixEnd.EVICTED)


def test_content_that_came_back_in_part_still_remembers_what_followed() -> None:
    """Computed again it has another identity; what was evicted behind it was known by the old."""
    user = PoolUser(8)
    cache(user, tokens(0, 16))
    user.admit(0, tokens(100, 32))  # everything is evicted
    user.release(0)
    cache(user, tokens(0, 8))

    answer = ask(user, tokens(0, 17))

    assert answer.cached_tokens == 8
    assert answer.account == PrefixAccount(PrefixEnd.EVICTED)


def test_a_reset_is_named() -> None:
    user = PoolUser(16)
    cache(user, tokens(0, 8))
    user.pool.reset_cache()

    assert ask(user, tokens(0, 9)).account == PrefixAccount(PrefixEnd.RESET)


def test_content_whose_step_failed_is_named() -> None:
    user = PoolUser(16)
    user.posted = 1
    user.admit(0, tokens(0, 8))
    user.publish(0, tokens(0, 8), step=1)
    user.pool.unpublish(UnpublishBlocks(1, 0))

    assert ask(user, tokens(0, 9)).account == PrefixAccount(PrefixEnd.FAILED)


def test_a_growing_sequence_evicts_nothing_before_its_own_account() -> None:
    user = PoolUser(4)
    cache(user, tokens(0, 16))

    answer = user.admit(0, [*tokens(0, 4), 99, *tokens(5, 11)])

    assert answer.account == PrefixAccount(NEW, 4)


def test_the_account_never_tells_of_another_salt() -> None:
    """Whether somebody else has asked for this, and up to which token, is nobody's business."""
    stranger, alone = PoolUser(16), PoolUser(16)
    cache(stranger, tokens(0, 12), salt=b"theirs")
    prompts = [tokens(0, 13), [*tokens(0, 6), 99, *tokens(7, 6)], [99, *tokens(1, 12)]]

    def accounts(user: PoolUser) -> list[PrefixAccount | None]:
        return [ask(user, prompt, salt=b"mine").account for prompt in prompts]

    assert accounts(stranger) == accounts(alone) == [PrefixAccount(NEW)] * 3
    stranger.admit(0, tokens(500, 64))  # now theirs is evicted, which is not told either
    stranger.release(0)
    assert accounts(stranger) == [PrefixAccount(NEW)] * 3
    stranger.pool.reset_cache()
    assert accounts(stranger) == [PrefixAccount(NEW)] * 3


def test_no_salt_and_adapter_read_like_another_pair() -> None:
    words = [b"", b"a", b"b", b"ab", b"\0", b"\0" * 8, b"\1" + b"\0" * 7, b"\0" * 7 + b"\1"]
    roots = {prefix_root(salt, adapter) for salt in words for adapter in words}

    assert len(roots) == len(words) ** 2


def test_adapters_share_no_blocks_and_are_told_nothing_of_each_other() -> None:
    user = PoolUser(16)
    cache(user, tokens(0, 12))

    other = user.admit(0, tokens(0, 12), adapter=b"pirate")

    assert other.cached_tokens == 0
    assert other.account == PrefixAccount(NEW)


def test_the_adapter_of_a_request_keeps_its_prefix_apart() -> None:
    world = World()
    for serial, adapter in enumerate([b"", b"pirate", b"pirate", b""]):
        request = make_request(serial, tokens(0, 12), max_tokens=2)
        world.add(replace(request, adapter=adapter))
        world.run()

    admitted = [told for report in world.reports for told in report.admitted]
    assert [told.cached_tokens for told in admitted] == [0, 0, 8, 8]
    assert [told.account for told in admitted[:2]] == [PrefixAccount(NEW)] * 2


def test_the_memory_of_what_was_forgotten_is_bounded() -> None:
    memory = Forgotten(100)
    keys = [(b"root", token_bytes(frozen_ints([i]))) for i in range(1_000)]
    for key in keys:
        memory.add(key, 1, PrefixEnd.EVICTED)
        assert len(memory) <= 200

    assert all(memory.why(key) for key in keys[-100:])
    assert memory.why(keys[0]) is None


def test_a_preempted_sequence_gives_account_once() -> None:
    world = World(limits=make_limits(max_num_seqs=4), num_blocks=16)
    for serial in range(4):
        world.request(serial, tokens(100 * serial, 9), max_tokens=30)
    world.run()

    admitted = [admitted for report in world.reports for admitted in report.admitted]
    assert world.preemptions > 0
    assert [told.serial for told in admitted] == [0, 1, 2, 3]
    assert all(told.account is not None and told.account.end is NEW for told in admitted)


def test_without_prefix_caching_there_is_no_account() -> None:
    world = World(limits=make_limits(prefix_caching=False))
    world.request(1, tokens(0, 12))
    world.run()

    assert world.reports[0].admitted[0].account is None


def test_the_account_reaches_the_result_and_the_log() -> None:
    async def scenario() -> list[Usage]:
        async with make_engine() as engine:
            params = SamplingParams(max_tokens=2)
            prompts = ["the same long beginning, ONE more", "the same long beginning, TWO more"]
            return [(await engine.generate(prompt, params)).usage for prompt in prompts]

    structlog.configure()
    with capture_logs() as lines:
        first, second = run_virtual(scenario())

    assert first.prefix == PrefixAccount(NEW)
    difference = second.prompt_tokens - len("TWO more")
    assert second.prefix == PrefixAccount(NEW, difference)
    assert second.cached_tokens == difference // BLOCK * BLOCK
    finished = [line for line in lines if line["event"] == "request.finished"]
    assert [line["prefix_end"] for line in finished] == ["new", "new"]
    assert [line["first_difference"] for line in finished] == [None, difference]


def test_a_request_that_never_started_has_no_account() -> None:
    async def scenario() -> Usage:
        async with make_engine(max_num_seqs=1) as engine:
            first = asyncio.ensure_future(engine.generate("one", SamplingParams(max_tokens=50)))
            await asyncio.sleep(0.02)
            result = await engine.generate("two", queue_timeout=0.05)
            await first
            return result.usage

    assert run_virtual(scenario()).prefix is None
