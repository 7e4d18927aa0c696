"""The block pool by plain calls; every call is followed by check()."""

import random

import pytest

from stepahead.kvpool import BlockPool, HostTier, SwapCosts, prefix_root
from stepahead.messages import (
    NO_LONGS,
    AdmitSequence,
    BlocksReserved,
    FullBlocks,
    Grant,
    PublishBlocks,
    ReleaseBlocks,
    ReserveBlocks,
    SequenceAdmitted,
    UnpublishBlocks,
    frozen_ints,
    frozen_longs,
)

SIZE = 4


class PoolUser:
    """Asks a pool the way the Scheduler does, with as few words as a test needs."""

    def __init__(
        self, num_blocks: int = 8, *, watermark: int = 0, host: HostTier | None = None
    ) -> None:
        self.pool = BlockPool(num_blocks, SIZE, num_slots=8, watermark=watermark, host=host)
        self.posted = self.done = 0

    def admit(
        self,
        slot: int,
        tokens: list[int],
        *,
        salt: bytes = b"",
        adapter: bytes = b"",
        chunk: int = 1_000,
        held_tokens: int = 0,
        promised: int = 0,
        victims: tuple[int, ...] = (),
        fences: tuple[int, ...] | None = None,
        savable: tuple[int, ...] = (),
    ) -> SequenceAdmitted:
        token_ids = frozen_ints(tokens)
        answer = self.pool.admit(
            AdmitSequence(
                self.posted,
                self.done,
                slot,
                slot,
                token_ids,
                prefix_root(salt, adapter),
                chunk,
                held_tokens,
                self.pool.num_held == 0,
                True,
                promised,
                frozen_longs(victims),
                frozen_longs((0,) * len(victims) if fences is None else fences),
                frozen_ints(savable),
            )
        )
        self.pool.check()
        return answer

    def publish(self, slot: int, tokens: list[int], *, first: int = 0, step: int = 0) -> None:
        """Publish the full blocks of these tokens, from the one at place `first` on."""
        num_blocks = len(tokens) // SIZE - first
        self.pool.publish(
            PublishBlocks(
                self.posted,
                self.done,
                FullBlocks(
                    step,
                    frozen_longs([slot]),
                    frozen_ints([first]),
                    frozen_ints([num_blocks]),
                    frozen_ints(tokens[first * SIZE :][: num_blocks * SIZE]),
                ),
            )
        )
        self.pool.check()

    def release(self, slot: int, *, fence: int = 0) -> None:
        ask = ReleaseBlocks(self.posted, self.done, frozen_longs([slot]), frozen_longs([fence]))
        self.pool.release(ask)
        self.pool.check()

    def settle(self, done: int) -> None:
        self.posted, self.done = max(self.posted, done), done
        self.pool.release(ReleaseBlocks(self.posted, self.done, NO_LONGS, NO_LONGS))
        self.pool.check()

    def grow(
        self,
        demands: list[tuple[int, int, int]],
        victims: list[tuple[int, int, int]] | None = None,
        savable: tuple[int, ...] = (),
    ) -> BlocksReserved:
        """Demands are (slot, blocks, rank), victims (slot, rank, fence), the last rank first."""
        slots, wanted, ranks = zip(*demands, strict=True)
        gone, gone_ranks, fences = zip(*victims, strict=True) if victims else ((), (), ())
        answer = self.pool.reserve(
            ReserveBlocks(
                self.posted,
                self.done,
                None,
                frozen_longs(slots),
                frozen_ints(wanted),
                frozen_longs(ranks),
                frozen_longs(gone),
                frozen_longs(gone_ranks),
                frozen_longs(fences),
                frozen_ints(savable),
            )
        )
        self.pool.check()
        return answer


def tokens(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def test_a_published_prefix_is_found_by_the_next_sequence() -> None:
    user = PoolUser()
    first = user.admit(0, tokens(0, 12))
    user.publish(0, tokens(0, 12))

    second = user.admit(1, tokens(0, 10))

    assert first.cached_tokens == 0
    assert second.cached_tokens == 8
    assert second.block_ids[:2].tolist() == first.block_ids[:2].tolist()
    assert user.pool.num_held == 4


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """Field case 082."""
    user = PoolUser()
    user.admit(0, tokens(0, 8))
    user.publish(0, tokens(0, 8))

    assert user.admit(1, tokens(0, 8)).cached_tokens == 4


def test_blocks_of_another_salt_are_not_found() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 8), salt=b"a")
    user.publish(0, tokens(0, 8))

    assert user.admit(1, tokens(0, 9), salt=b"b").cached_tokens == 0
    assert user.admit(2, tokens(0, 9), salt=b"a").cached_tokens == 8


@pytest.mark.parametrize(
    ("prompt", "cached_tokens"),
    [(tokens(50, 9), 0), ([*tokens(4, 4), 1], 0), (tokens(0, 9), 4)],
)
def test_only_the_same_tokens_after_the_same_tokens_are_a_hit(
    prompt: list[int], cached_tokens: int
) -> None:
    """Field cases 079 and 080: nothing is believed by its hash."""
    user = PoolUser(16)
    user.admit(0, tokens(0, 4))
    user.publish(0, tokens(0, 4))

    assert user.admit(1, prompt).cached_tokens == cached_tokens


def test_a_repeated_block_is_not_its_own_continuation() -> None:
    user = PoolUser(16)
    user.admit(0, tokens(0, 4))
    user.publish(0, tokens(0, 4))

    assert user.admit(1, tokens(0, 4) * 2 + [1]).cached_tokens == 4


def test_a_released_block_waits_for_its_fence() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 12))
    user.posted = 3

    user.release(0, fence=3)

    assert (user.pool.num_free, user.pool.num_due, user.pool.num_held) == (5, 3, 0)
    user.settle(2)
    assert user.pool.num_due == 3
    user.settle(3)
    assert (user.pool.num_free, user.pool.num_due) == (8, 0)


def test_a_shared_block_waits_for_the_latest_of_its_fences() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 5))
    user.publish(0, tokens(0, 5))
    user.admit(1, tokens(0, 5))
    user.posted = 7

    user.release(0, fence=7)
    user.release(1, fence=3)
    user.settle(3)

    assert user.pool.num_due == 2  # the shared one, and the tail of slot 0


def test_a_due_block_is_found_by_its_content() -> None:
    user = PoolUser()
    admitted = user.admit(0, tokens(0, 8))
    user.publish(0, tokens(0, 8))
    user.posted = 1
    user.release(0, fence=1)

    again = user.admit(1, tokens(0, 9))

    assert again.block_ids[:2].tolist() == admitted.block_ids.tolist()
    assert user.pool.num_due == 0


def test_a_due_block_that_was_found_and_released_again_waits_for_its_new_fence() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 5))
    user.publish(0, tokens(0, 5))
    user.posted = 4
    user.release(0, fence=2)
    user.admit(1, tokens(0, 5))
    user.release(1, fence=4)

    user.settle(2)

    assert user.pool.num_due == 2  # the found one, and the new tail; the old tail is free
    user.settle(4)
    assert user.pool.num_free == 8


def test_a_slots_next_owner_does_not_publish_after_a_forgotten_beginning() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 12))
    user.pool.reset_cache()
    piece = frozen_ints(tokens(4, 4))
    full = FullBlocks(0, frozen_longs([0]), frozen_ints([1]), frozen_ints([1]), piece)
    later_only = PublishBlocks(0, 0, full)

    user.pool.publish(later_only)

    user.pool.check()
    assert user.pool.num_cached == 0


def test_a_former_twin_carries_no_descendants_of_its_next_owner() -> None:
    user = PoolUser()
    user.admit(2, tokens(50, 4))  # which is never published
    user.admit(0, tokens(0, 4))
    twin = user.admit(1, tokens(0, 4)).block_ids
    user.publish(0, tokens(0, 4))
    user.publish(1, tokens(0, 4))
    user.release(1)
    assert user.grow([(2, 1, 0)]).block_ids.tolist() == twin.tolist()
    user.grow([(2, 1, 0)])

    user.publish(2, tokens(50, 12), first=1)

    assert user.admit(3, [*tokens(0, 4), *tokens(58, 4), 1]).cached_tokens == 4


def test_a_twin_of_a_published_block_carries_its_descendants() -> None:
    user = PoolUser(16)
    user.admit(0, tokens(0, 4))
    user.admit(1, tokens(0, 8))
    user.publish(0, tokens(0, 4))
    user.publish(1, tokens(0, 8))  # its first block is a twin; its second one is new

    assert user.admit(2, tokens(0, 9)).cached_tokens == 8


def test_blank_blocks_are_reused_before_cached_ones_and_tails_before_heads() -> None:
    user = PoolUser(4)
    first = user.admit(0, tokens(0, 8)).block_ids.tolist()
    user.publish(0, tokens(0, 8))
    user.release(0)

    second = user.admit(1, tokens(100, 12)).block_ids.tolist()

    assert set(second[:2]).isdisjoint(first)
    assert second[2] == first[1]
    assert user.pool.num_cached == 1


def test_growth_takes_from_the_last_in_the_order() -> None:
    user = PoolUser(4)
    user.admit(0, tokens(0, 4))
    user.admit(1, tokens(10, 4))
    user.admit(2, tokens(20, 8))

    answer = user.grow([(0, 1, 0)], victims=[(2, 2, 0), (1, 1, 0)])

    assert answer.outcomes.tolist() == [Grant.FULL]
    assert answer.preempted.tolist() == [2]


def test_growth_takes_the_tails_it_needs_and_no_more() -> None:
    """Rule 16."""
    user = PoolUser(8)
    user.admit(0, tokens(0, 4))
    user.admit(1, tokens(10, 16))
    table = user.admit(2, tokens(30, 12)).block_ids.tolist()

    answer = user.grow([(0, 2, 0)], victims=[(2, 2, 0), (1, 1, 0)])

    assert (answer.preempted.tolist(), answer.kept.tolist()) == ([2], [1])
    assert user.pool.table(2) == (table[0],)
    assert set(answer.block_ids.tolist()) == set(table[1:])
    again = user.grow([(0, 2, 0)], victims=[(2, 2, 0), (1, 1, 0)])
    assert (again.preempted.tolist(), again.kept.tolist()) == ([2, 1], [0, 3])


def test_who_shares_all_its_blocks_is_spared_until_nobody_else_holds_them() -> None:
    user = PoolUser(6)
    user.admit(0, tokens(0, 4))
    user.admit(1, tokens(10, 12))
    user.publish(1, tokens(10, 12))
    user.admit(2, tokens(10, 9))
    user.admit(3, tokens(40, 4))

    first = user.grow([(0, 2, 0)], victims=[(3, 3, 0), (2, 2, 0), (1, 1, 0)])

    assert (first.preempted.tolist(), first.kept.tolist()) == ([3, 2], [0, 2])
    second = user.grow([(0, 2, 0)], victims=[(2, 2, 0), (1, 1, 0)])
    assert dict(zip(second.preempted.tolist(), second.kept.tolist(), strict=True)) == {1: 1, 2: 1}


def test_a_tail_that_was_dropped_is_found_again() -> None:
    user = PoolUser(6)
    user.admit(0, tokens(0, 4))
    whole = user.admit(1, tokens(10, 17)).block_ids.tolist()
    user.publish(1, tokens(10, 16))
    cut = user.grow([(0, 2, 0)], victims=[(1, 1, 0)])
    assert (cut.preempted.tolist(), cut.kept.tolist()) == ([1], [3])
    user.release(0)

    answer = user.admit(1, tokens(10, 17), held_tokens=12)

    assert (answer.cached_tokens, answer.num_found) == (12, 0)  # it was the tail that others took
    assert answer.block_ids.tolist()[:3] == whole[:3]


def test_what_is_found_beyond_the_held_blocks_takes_the_place_of_the_last_one() -> None:
    user = PoolUser(8)
    first = user.admit(0, tokens(0, 17)).block_ids.tolist()
    user.publish(0, tokens(0, 16))
    user.admit(1, tokens(0, 6))  # it holds a full block and half of one

    answer = user.admit(1, tokens(0, 17), held_tokens=6)

    assert answer.cached_tokens == 16
    assert answer.num_found == 3
    assert answer.block_ids.tolist()[1:4] == first[1:4]


def test_an_image_that_is_given_up_in_the_turn_it_was_made_is_still_being_written() -> None:
    """Two demands of one message cut the same victim; the second finds no room to save."""
    host = HostTier(1, SIZE, SwapCosts(block_s=1.0, token_s=1.0))
    user = PoolUser(4, host=host)
    for slot in range(3):
        user.admit(slot, tokens(10 * slot, 8 if slot == 2 else 4))

    answer = user.grow([(0, 1, 0), (1, 1, 1)], victims=[(2, 2, 0)], savable=(8,))

    assert answer.copies is not None
    assert answer.copies.out_hosts.tolist() == [0]
    assert host.num_free == 0
    user.settle(1)
    assert host.num_free == 1


def test_growth_never_takes_from_an_earlier_one() -> None:
    user = PoolUser(2)
    user.admit(0, tokens(0, 4))
    user.admit(1, tokens(10, 4))

    answer = user.grow([(1, 1, 1)], victims=[(0, 0, 0)])

    assert answer.outcomes.tolist() == [Grant.REFUSED]
    assert answer.preempted.tolist() == []


def test_due_blocks_count_before_another_victim_is_taken() -> None:
    """Rule 9: with steps in flight every victim is fenced; one missing block costs one victim."""
    user = PoolUser(4)
    for slot in range(4):
        user.admit(slot, tokens(10 * slot, 4))
    user.posted = 2
    victims = [(3, 3, 2), (2, 2, 2), (1, 1, 2)]

    first = user.grow([(0, 1, 0)], victims)
    second = user.grow([(0, 1, 0)], victims[1:])

    assert first.preempted.tolist() == [3]
    assert first.outcomes.tolist() == second.outcomes.tolist() == [Grant.LATER]
    assert second.preempted.tolist() == []
    user.settle(2)
    assert user.grow([(0, 1, 0)], victims[1:]).outcomes.tolist() == [Grant.FULL]


def test_two_demands_do_not_wait_for_the_same_due_block() -> None:
    user = PoolUser(4)
    for slot in range(4):
        user.admit(slot, tokens(10 * slot, 4))
    user.posted = 1

    answer = user.grow([(0, 1, 0), (1, 1, 1)], victims=[(3, 3, 1), (2, 2, 1)])

    assert answer.preempted.tolist() == [3, 2]


def test_a_victim_of_an_earlier_demand_gets_nothing_itself() -> None:
    user = PoolUser(2)
    user.admit(0, tokens(0, 4))
    user.admit(1, tokens(10, 4))

    answer = user.grow([(0, 1, 0), (1, 1, 1)], victims=[(1, 1, 0)])

    assert answer.preempted.tolist() == [1]
    assert answer.granted.tolist() == [1, 0]
    assert user.pool.table(1) == ()


def test_a_chunk_may_be_granted_in_part() -> None:
    user = PoolUser(3)
    user.admit(0, tokens(0, 4))

    answer = user.grow([(0, 5, 0)])

    assert answer.outcomes.tolist() == [Grant.PART]
    assert answer.granted.tolist() == [2]


def test_admission_needs_the_whole_prompt_though_it_takes_a_chunk() -> None:
    user = PoolUser(4)
    user.admit(0, tokens(0, 4))

    refused = user.admit(1, tokens(10, 16), chunk=4)
    admitted = user.admit(1, tokens(10, 12), chunk=4)

    assert refused.outcome == Grant.REFUSED
    assert admitted.outcome == Grant.FULL
    assert len(admitted.block_ids) == 1


def test_admission_leaves_what_was_promised_to_admitted_prefills() -> None:
    user = PoolUser(4)
    user.admit(0, tokens(0, 12), chunk=4)

    assert user.admit(1, tokens(10, 8), promised=2).outcome == Grant.REFUSED
    assert user.admit(1, tokens(10, 4), promised=2).outcome == Grant.FULL


def test_the_watermark_is_waived_for_a_sequence_that_is_alone() -> None:
    user = PoolUser(4, watermark=2)

    alone = user.admit(0, tokens(0, 12))
    beside = user.admit(1, tokens(10, 4))

    assert alone.outcome == Grant.FULL
    assert beside.outcome == Grant.REFUSED


def test_admission_takes_victims_only_if_together_they_suffice() -> None:
    user = PoolUser(4)
    user.admit(0, tokens(0, 4))
    user.admit(1, tokens(10, 4))
    user.admit(2, tokens(20, 8))

    refused = user.admit(3, tokens(30, 16), victims=(2, 1))
    admitted = user.admit(3, tokens(30, 8), victims=(2, 1))

    assert refused.outcome == Grant.REFUSED
    assert refused.preempted.tolist() == []
    assert admitted.outcome == Grant.FULL
    assert admitted.preempted.tolist() == [2]


def test_admission_behind_fenced_victims_comes_later_and_holds_nothing() -> None:
    user = PoolUser(2)
    user.admit(0, tokens(0, 8))
    user.posted = 1

    later = user.admit(1, tokens(10, 8), victims=(0,), fences=(1,))

    assert later.outcome == Grant.LATER
    assert user.pool.num_held == 0
    user.settle(1)
    assert user.admit(1, tokens(10, 8)).outcome == Grant.FULL


def test_blocks_that_a_victim_shares_are_no_gain() -> None:
    user = PoolUser(4)
    user.admit(0, tokens(0, 9))
    user.publish(0, tokens(0, 9))
    user.admit(1, tokens(0, 9))

    refused = user.admit(2, tokens(50, 12), victims=(1,))

    assert refused.outcome == Grant.REFUSED
    assert user.pool.table(1) != ()


def test_a_failed_step_takes_back_what_it_was_to_write() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 4))
    user.posted = 1
    user.publish(0, tokens(0, 4), step=1)
    user.settle(1)
    user.admit(1, tokens(10, 4))
    user.posted = 2
    user.publish(1, tokens(10, 4), step=2)

    user.pool.unpublish(UnpublishBlocks(2, 1))

    user.pool.check()
    assert user.admit(2, tokens(0, 5)).cached_tokens == 4
    assert user.admit(3, tokens(10, 5)).cached_tokens == 0


def test_the_pool_names_the_step_that_frees_something_next() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 4))
    user.admit(1, tokens(10, 4))
    user.posted = 5
    assert user.pool.next_fence is None
    user.release(0, fence=5)
    user.release(1, fence=4)
    assert user.pool.next_fence == 4
    user.settle(4)
    assert user.pool.next_fence == 5


def test_a_cache_reset_forgets_content_but_not_who_holds_blocks() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 8))
    user.publish(0, tokens(0, 8))

    user.pool.reset_cache()

    user.pool.check()
    assert user.admit(1, tokens(0, 9)).cached_tokens == 0
    assert user.pool.num_held == 5


def test_blocks_after_forgotten_ones_are_not_published() -> None:
    user = PoolUser()
    user.admit(0, tokens(0, 8))
    user.publish(0, tokens(0, 4))
    user.pool.reset_cache()

    user.publish(0, tokens(0, 8))  # the first of them is blank now; it is published afresh

    assert user.admit(1, tokens(0, 9)).cached_tokens == 8


@pytest.mark.parametrize("seed", range(30))
def test_random_operations_keep_every_invariant(seed: int) -> None:
    rng = random.Random(seed)
    user = PoolUser(rng.choice([6, 12, 30]), watermark=rng.choice([0, 1]))
    families = [tokens(100 * i, 20) for i in range(3)]
    held: dict[int, list[int]] = {}
    waiting: dict[int, list[int]] = {}  # they gave up a tail, if not everything
    published = [0] * 8  # blocks of each slot
    for _ in range(200):
        user.posted += rng.randrange(2)
        if rng.random() < 0.4:
            user.settle(rng.randint(user.done, user.posted))
        slot = rng.randrange(8)
        if slot in held and rng.random() < 0.5:
            user.release(slot, fence=rng.randint(max(user.posted - 3, 0), user.posted))
            del held[slot]
        elif slot in held:
            covered = held[slot][: len(user.pool.table(slot)) * SIZE]
            user.publish(slot, covered, first=published[slot], step=user.posted)
            published[slot] = len(covered) // SIZE
        elif slot not in held:
            prompt = rng.choice(families)[: rng.randint(1, 20)]
            prompt = waiting.get(slot, prompt)
            held_tokens = len(user.pool.table(slot)) * SIZE
            victims = tuple(victim for victim in held if victim != slot)[: rng.randrange(3)]
            answer = user.admit(
                slot,
                prompt,
                held_tokens=held_tokens,
                victims=victims,
                fences=(user.posted,) * len(victims),
            )
            assert answer.cached_tokens >= held_tokens or answer.outcome != Grant.FULL
            for victim, kept in zip(answer.preempted.tolist(), answer.kept.tolist(), strict=True):
                waiting[victim] = held.pop(victim)
                published[victim] = min(published[victim], kept)
            if answer.outcome == Grant.FULL:
                if answer.num_found or not held_tokens:
                    published[slot] = answer.cached_tokens // SIZE
                waiting.pop(slot, None)
                held[slot] = prompt

    for slot in (*held, *waiting):
        user.release(slot, fence=user.posted)
    user.settle(user.posted)

    assert user.pool.num_free == user.pool.num_blocks
