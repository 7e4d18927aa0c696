"""Faults planted in the cores, one at a time: the random lives must find each of them.

This tests the simulation itself: an invariant that never fires proves nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stepahead.actors.batching.admission as admission_module
from stepahead.actors.batching import Batcher
from stepahead.actors.batching.admission import Admission
from stepahead.actors.batching.block_client import BlockClient
from stepahead.actors.batching.draft import Rows, StepDraft
from stepahead.actors.batching.failures import Failures
from stepahead.actors.batching.ledger import Ledger
from stepahead.actors.batching.publishing import Publisher
from stepahead.actors.batching.roster import Roster
from stepahead.actors.batching.sequence import Sequence
from stepahead.actors.batching.steps import StepsInFlight
from stepahead.actors.batching.weights import WeightReset
from stepahead.kvpool import BlockPool
from stepahead.kvpool.content import Before
from stepahead.kvpool.continuations import Continuations
from stepahead.kvpool.free import DueBlocks, FreeBlocks
from stepahead.kvpool.host import HostTier
from stepahead.kvpool.pins import Pins
from stepahead.kvpool.prefix import PrefixIndex
from stepahead.kvpool.tails import Tails
from stepahead.messages import FinishReason, FullBlocks, Ints, Longs, StepPlan

from .test_batcher_random import PressedLife, live_and_check

Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: list[Plant] = []
SEEDS = 200  # lives in which a fault must show
FIRST: dict[str, int] = {}  # where to look first, to be quick


def fault(plant: Plant) -> Plant:
    FAULTS.append(plant)
    return plant


def shows_late(seed: int) -> Callable[[Plant], Plant]:
    """A fault that only a rare life brings out; it was seen in this one."""

    def mark(plant: Plant) -> Plant:
        FIRST[plant.__name__] = seed
        return fault(plant)

    return mark


@fault
def blocks_are_published_before_a_step_writes_them(patch: pytest.MonkeyPatch) -> None:
    take_full = Publisher.take_full

    def early(self: Publisher, slots: Longs, reach: Ints, step: int) -> FullBlocks | None:
        covered, confirmed = self._ledger.covered[slots], self._ledger.confirmed[slots]
        return take_full(self, slots, np.minimum(confirmed, covered), step)

    patch.setattr(Publisher, "take_full", early)


@fault
def blocks_are_free_before_the_step_that_uses_them_is_done(patch: pytest.MonkeyPatch) -> None:
    add = DueBlocks.add
    patch.setattr(DueBlocks, "add", lambda self, blocks, fence: add(self, blocks, fence - 1))


@fault
def a_late_row_is_applied_to_the_next_owner_of_the_slot(patch: pytest.MonkeyPatch) -> None:
    def void(self: Ledger, slot: int) -> None:
        self.epoch[slot] += 1

    patch.setattr(Ledger, "void", void)
    free_slot = Ledger.free_slot
    patch.setattr(Ledger, "free_slot", lambda self, done: free_slot(self, 2**31))


@fault
def a_sequence_is_resumed_before_its_rows_are_done(patch: pytest.MonkeyPatch) -> None:
    slot_for = Admission._slot_for

    def hasty(self: Admission, draft: StepDraft, sequence: Sequence) -> int | None:
        return slot_for(self, draft, sequence) if sequence.slot is None else sequence.slot

    patch.setattr(Admission, "_slot_for", hasty)


@fault
def every_victim_is_taken_for_one_block(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "num_due", property(lambda self: 0))


@fault
def one_token_too_many_is_generated(patch: pytest.MonkeyPatch) -> None:
    assign = Ledger.assign

    def generous(self: Ledger, slot: int, sequence: Sequence) -> None:
        assign(self, slot, sequence)
        self.end[slot] += 1

    patch.setattr(Ledger, "assign", generous)


@fault
def a_token_that_arrives_after_a_preemption_is_lost(patch: pytest.MonkeyPatch) -> None:
    preempt = Ledger.preempt

    def forgetful(self: Ledger, slot: int, kept_blocks: int) -> None:
        preempt(self, slot, kept_blocks)
        self.valid_from[slot] = self.epoch[slot]

    patch.setattr(Ledger, "preempt", forgetful)


@fault
def a_preempted_sequence_that_ends_keeps_its_slot(patch: pytest.MonkeyPatch) -> None:
    remove = Roster.remove

    def leaky(self: Roster, sequence: Sequence) -> None:
        if not self.is_running(sequence):
            sequence.slot = None
        remove(self, sequence)

    patch.setattr(Roster, "remove", leaky)


@fault
def a_sequence_starts_one_position_after_what_was_found(patch: pytest.MonkeyPatch) -> None:
    first_row = Admission._first_row

    def late(
        self: Admission, slot: int, num_confirmed: int, cached_tokens: int, chunk: int
    ) -> Rows:
        skipped = 1 if num_confirmed - cached_tokens > 1 else 0
        return first_row(self, slot, num_confirmed, cached_tokens + skipped, chunk)

    patch.setattr(Admission, "_first_row", late)


@fault
def a_slot_keeps_the_stop_ids_of_its_former_owner(patch: pytest.MonkeyPatch) -> None:
    def add_only(self: Ledger, slot: int, stop_ids: tuple[int, ...]) -> None:
        old = self._stop_ids[:, slot].tolist()
        self._stop_ids[:, slot] = -1
        both = [*stop_ids, *(token_id for token_id in old if token_id >= 0)]
        self._stop_ids = np.full((4, self.num_slots), -1, np.int32)
        self._stop_ids[: len(both[:4]), slot] = both[:4]

    patch.setattr(Ledger, "_set_stop_ids", add_only)


@fault
def prefixes_are_found_whatever_their_salt(patch: pytest.MonkeyPatch) -> None:
    admit = BlockPool.admit
    patch.setattr(BlockPool, "admit", lambda self, ask: admit(self, replace(ask, root=b"")))


@fault
def a_difference_from_another_salt_is_told(patch: pytest.MonkeyPatch) -> None:
    def everybodys(self: Continuations, before: Before, token_ids: Ints) -> int | None:
        others = np.array(self._befores).nonzero()[0]
        differs = self._tokens[others] != token_ids
        return int(differs.argmax(axis=1).max()) if len(others) else None

    patch.setattr(Continuations, "most_in_common", everybodys)


@fault
def a_pin_does_not_see_what_is_computed_after_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pins, "find_more", lambda self, published: [])


@fault
def pinned_content_is_cached_like_any_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreeBlocks, "add_pinned", FreeBlocks.add_cached)


@fault
def old_content_does_not_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreeBlocks, "unused_since", lambda self, time_ns: [])


@fault
def cached_prefixes_outlive_their_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockClient, "forget_prefixes", lambda self: None)


@fault
def weights_change_under_a_step(patch: pytest.MonkeyPatch) -> None:
    begin_loading = WeightReset.begin_loading

    def hasty(self: WeightReset) -> str | None:
        steps, self._steps = self._steps, StepsInFlight(1)
        source = begin_loading(self)
        self._steps = steps
        return source

    patch.setattr(WeightReset, "begin_loading", hasty)


@fault
def a_weight_reset_forgets_what_was_said(patch: pytest.MonkeyPatch) -> None:
    void = WeightReset._void_everything

    def forgetful(self: WeightReset) -> None:
        slots = self._roster.running.slots
        void(self)
        self._ledger.confirmed[slots] -= 1

    patch.setattr(WeightReset, "_void_everything", forgetful)


@fault
def the_whole_prompt_may_be_found(patch: pytest.MonkeyPatch) -> None:
    match = BlockPool._match
    patch.setattr(
        BlockPool,
        "_match",
        lambda self, ask: match(self, replace(ask, token_ids=np.append(ask.token_ids, 0))),
    )


@fault
def a_failed_step_leaves_its_blocks_findable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixIndex, "forget_uncommitted", lambda self: self._uncommitted.clear() or [])


@fault
def stops_before_min_tokens_or_not_are_mixed_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Ledger,
        "ends",
        lambda self, slots, token_ids, lengths: [
            (row, False) for row in (lengths >= self.end[slots]).nonzero()[0].tolist()
        ],
    )


@fault
def fences_lag_a_step_behind(patch: pytest.MonkeyPatch) -> None:
    fences = BlockClient._fences
    patch.setattr(BlockClient, "_fences", lambda self, slots: fences(self, slots) - 1)


@fault
def written_positions_are_not_marked_by_epoch(patch: pytest.MonkeyPatch) -> None:
    that_count = Ledger._that_count

    def always(
        self: Ledger, plan: StepPlan, ends: Ints, token_ids: Ints
    ) -> tuple[Longs, Ints, Ints]:
        result = that_count(self, plan, ends, token_ids)
        self.written[plan.slots] = ends
        return result

    patch.setattr(Ledger, "_that_count", always)


@fault
def who_gave_up_a_tail_goes_on_behind_it(patch: pytest.MonkeyPatch) -> None:
    preempt = Ledger.preempt

    def partly(self: Ledger, slot: int, kept_blocks: int) -> None:
        reach = min(self.scheduled[slot], self.confirmed[slot])
        preempt(self, slot, kept_blocks)
        self.scheduled[slot] = reach if kept_blocks else 0

    patch.setattr(Ledger, "preempt", partly)


@fault
def who_ends_while_it_waits_keeps_its_blocks(patch: pytest.MonkeyPatch) -> None:
    end = Batcher._end

    def keep(self: Batcher, serial: int, reason: FinishReason, **why: Any) -> None:
        sequence = self._roster.get(serial)
        with pytest.MonkeyPatch.context() as kept:
            if sequence is not None and not self._roster.is_running(sequence):
                kept.setattr(self._blocks, "release", lambda slot: None)
            end(self, serial, reason, **why)

    patch.setattr(Batcher, "_end", keep)


@fault
def what_those_who_wait_hold_is_out_of_reach(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "holders", lambda self: [])


@fault
def a_host_block_is_reused_before_its_copy_is_done(patch: pytest.MonkeyPatch) -> None:
    release = HostTier.release
    patch.setattr(HostTier, "release", lambda self, slot, fence: release(self, slot, 0))


@fault
def an_image_comes_back_in_another_order(patch: pytest.MonkeyPatch) -> None:
    load = Tails.load
    patch.setattr(Tails, "load", lambda self, hosts, blocks: load(self, hosts[::-1], blocks))


@fault
def an_image_is_believed_and_not_copied_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tails, "load", lambda self, hosts, blocks: None)


@fault
def what_was_saved_starts_a_block_early(patch: pytest.MonkeyPatch) -> None:
    load = HostTier.load
    patch.setattr(
        HostTier,
        "load",
        lambda self, slot, first, fence: load(self, slot, max(first - 1, 0), fence),
    )


@shows_late(68)
def what_is_held_outlives_the_step_that_was_to_write_it(patch: pytest.MonkeyPatch) -> None:
    drop = Failures.drop

    def keep(self: Failures, sequence: Sequence) -> None:
        if self._roster.is_running(sequence):
            drop(self, sequence)

    patch.setattr(Failures, "drop", keep)


def live_many_lives(first: int) -> None:
    for seed in (first, *range(SEEDS)):
        live_and_check(seed)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_random_lives_find(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        live_many_lives(FIRST.get(plant.__name__, 0))


def live_under_pressure() -> None:
    for seed in range(SEEDS):
        live_and_check(seed, PressedLife)


def test_lives_under_pressure_find_that_preemptions_have_no_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_module, "MAX_PREEMPTIONS", 10**9)

    with pytest.raises(AssertionError):
        live_under_pressure()
