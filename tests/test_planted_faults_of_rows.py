"""Faults planted in rows with drafts and masks, one at a time: the random lives find each."""

from dataclasses import replace

import numpy as np
import pytest

import stepahead.actors.batching.batcher as batcher_module
from stepahead.actors.batching import speculation
from stepahead.actors.batching.draft import StepDraft
from stepahead.actors.batching.jumps import Jumps
from stepahead.actors.batching.ledger import Ledger
from stepahead.actors.batching.sequence import Sequence
from stepahead.actors.batching.speculation import Speculation
from stepahead.actors.batching.structured import StructuredRows
from stepahead.messages import NO_LONGS, Ints, Longs, SampleRows, StepDone, StepPlan, frozen_ints

from .test_batcher_random import live_and_check
from .test_planted_faults import Plant

FAULTS: list[Plant] = []
DRAFTED = range(200)  # lives in which a fault must show
STRUCTURED = range(0, 400, 4)  # those with grammars
SEEDS: dict[str, range] = {}


def fault(plant: Plant) -> Plant:
    SEEDS[plant.__name__] = DRAFTED
    FAULTS.append(plant)
    return plant


def fault_of_masks(plant: Plant) -> Plant:
    SEEDS[plant.__name__] = STRUCTURED
    FAULTS.append(plant)
    return plant


@fault
def rejected_drafts_are_kept(patch: pytest.MonkeyPatch) -> None:
    confirm = speculation.confirm_drafted

    def gullible(ledger: Ledger, plan: StepPlan, result: StepDone) -> tuple[Longs, Ints, Ints]:
        """Rows with drafts confirm all of them, and behind them what the device said last."""
        assert plan.drafts is not None
        extra = plan.drafts.per_row(len(plan.slots))[plan.samples]
        counts = np.ones_like(extra) if result.counts is None else result.counts
        drafts = iter(plan.drafts.token_ids.tolist())
        token_ids: list[int] = []
        for run, more in zip(np.split(result.token_ids, counts.cumsum()[:-1]), extra, strict=True):
            token_ids += [next(drafts) for _ in range(more)] + run[-1:].tolist()
        claimed = StepDone(result.step, frozen_ints(token_ids), (), frozen_ints(extra + 1))
        return confirm(ledger, plan, claimed)

    patch.setattr(batcher_module, "confirm_drafted", gullible)


@fault
def rejected_drafts_count_as_written(patch: pytest.MonkeyPatch) -> None:
    def lower(ledger: Ledger, slots: Longs) -> None:
        ledger.written[slots] = ledger.scheduled[slots]
        ledger.scheduled[slots] = ledger.confirmed[slots] - 1

    patch.setattr(speculation, "_lower", lower)


@fault
def rejected_drafts_stay_scheduled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(speculation, "_lower", lambda ledger, slots: None)


@fault
def blocks_are_published_with_their_drafts(patch: pytest.MonkeyPatch) -> None:
    extend = Speculation.extend

    def early(self: Speculation, draft: StepDraft, promised: int) -> None:
        extend(self, draft, promised)
        if draft.drafts is None or self._publisher is None:
            return
        rows, ledger = draft.rows(), self._ledger
        assert rows is not None
        slots = rows.slots[draft.drafts.rows]
        parts = np.split(draft.drafts.token_ids, draft.drafts.counts.cumsum()[:-1])
        for slot, part in zip(slots.tolist(), parts, strict=True):
            known = ledger.confirmed[slot]
            ledger.tokens[slot, known : known + len(part)] = part
        self._publisher.publish(slots, ledger.scheduled[slots], draft.step)

    patch.setattr(Speculation, "extend", early)


@fault
def drafts_go_past_max_tokens(patch: pytest.MonkeyPatch) -> None:
    guesses = Speculation._guesses

    def generous(self: Speculation, slots: Longs, confirmed: Ints, budget: int) -> list[Ints]:
        self._ledger.end[slots] += 1
        said = guesses(self, slots, confirmed, budget)
        self._ledger.end[slots] -= 1
        return said

    patch.setattr(Speculation, "_guesses", generous)


@fault
def a_row_is_planned_while_its_drafts_are_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Speculation, "awaits", lambda self, slots, *_: np.zeros(len(slots), np.bool_))


@fault
def what_was_accepted_behind_a_stop_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(speculation, "_is_behind", lambda rows, ended: np.zeros(len(rows), np.bool_))


@fault_of_masks
def masks_are_of_the_wrong_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        StructuredRows, "_is_known", lambda self, slots, ends: np.ones(len(slots), np.bool_)
    )


@fault_of_masks
def the_device_is_not_told_what_was_jumped_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Jumps, "tell", lambda self, draft: self._ledger.untold.clear())


@fault_of_masks
def what_is_sampled_where_a_grammar_jumped_counts(patch: pytest.MonkeyPatch) -> None:
    jump = Ledger.jump

    def quiet(self: Ledger, slot: int, token_ids: Ints) -> None:
        changes = self.changes
        jump(self, slot, token_ids)
        self.changes = changes

    patch.setattr(Ledger, "jump", quiet)


@fault_of_masks
def a_held_row_that_ended_gets_no_mask(patch: pytest.MonkeyPatch) -> None:
    take_due = StructuredRows.take_due

    def forgetful(self: StructuredRows) -> list[SampleRows]:
        return [replace(masks, void=NO_LONGS) for masks in take_due(self)]

    patch.setattr(StructuredRows, "take_due", forgetful)


@fault_of_masks
def masks_are_posted_twice(patch: pytest.MonkeyPatch) -> None:
    take_due = StructuredRows.take_due
    patch.setattr(StructuredRows, "take_due", lambda self: take_due(self) * 2)


@fault_of_masks
def a_held_row_is_forgotten_while_its_step_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StructuredRows, "_keep", lambda self, step, rows: self._held.pop(step, None))


@fault_of_masks
def rows_are_held_that_the_device_cannot_sample_later(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StructuredRows, "awaits", lambda self, slots, starts, confirmed: False)


@fault_of_masks
def a_request_runs_before_its_grammar_is_ready(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sequence, "is_ready", True)


@fault_of_masks
def a_row_gets_its_mask_before_its_grammar_has_seen_the_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        StructuredRows, "_are_behind", lambda self, slots: np.zeros(len(slots), dtype=np.bool_)
    )


@fault_of_masks
def a_grammar_misses_tokens_of_a_preempted_sequence(patch: pytest.MonkeyPatch) -> None:
    advance = StructuredRows.advance

    def lazy(self: StructuredRows, sequence: Sequence) -> str | None:
        slot, ledger = sequence.slot, self._ledger
        is_preempted = ledger.scheduled[slot] < ledger.confirmed[slot] - 1
        return None if is_preempted else advance(self, sequence)

    patch.setattr(StructuredRows, "advance", lazy)


def live_lives(seeds: range) -> None:
    for seed in seeds:
        live_and_check(seed)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_random_lives_find(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        live_lives(SEEDS[plant.__name__])
