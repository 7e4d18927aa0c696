"""Speculative rows (rule 22): drafts that a step carries, and what its result confirms of them.

A sequence under a drafter is planned only when its last token is confirmed; its row may then carry
guesses of the tokens that follow. They use what a finished step leaves over, so they never preempt
anybody and never delay an admission.

    before   0 ............ scheduled | confirmed              the last token has no KV yet
    planned  0 ........................ confirmed ... + k      KV of the drafts too
    result   0 ........................ + accepted | + 1       KV of rejected drafts is overwritten
"""

from collections.abc import Sequence as Tokens
from typing import Protocol

import numpy as np

from ...messages import (
    NO_LONGS,
    Bools,
    Drafts,
    Generate,
    Ints,
    Longs,
    StepDone,
    StepPlan,
    frozen_ints,
    seal,
)
from .draft import Rows, StepDraft
from .ledger import Ledger
from .parts import Parts
from .shares import fair_shares


class Drafter(Protocol):
    """Guesses the tokens that follow. Pure: the same tokens always give the same guess."""

    def most(self, request: Generate) -> int:
        """The most drafts a row of this request may carry; 0 leaves the request alone."""
        ...

    def draft(self, request: Generate, token_ids: Ints, most: int) -> Tokens[int]:
        """At most `most` ids that may follow the confirmed ones; a view, not to be kept."""
        ...


class Speculation:
    """Adds drafts to the rows of a step that is otherwise finished."""

    def __init__(self, drafter: Drafter, parts: Parts) -> None:
        self._drafter = drafter
        self._size = parts.limits.block_size
        self._ledger = parts.ledger
        self._roster = parts.roster
        self._blocks = parts.blocks
        self._publisher = parts.publisher

    def extend(self, draft: StepDraft, promised: int) -> None:
        """Let decoding rows carry drafts; `promised` blocks are what admitted prefills lack."""
        rows = draft.rows()
        if draft.budget <= 0 or rows is None:
            return
        places = self._decoding(rows)
        slots, confirmed = rows.slots[places], rows.confirmed[places]
        guesses = self._guesses(slots, confirmed, draft.budget)
        counts = np.array([len(guess) for guess in guesses], dtype=np.int32)
        covered = self._cover(draft, slots, confirmed, confirmed + counts, promised)
        counts = np.minimum(counts, covered - confirmed)
        carries = (counts > 0).nonzero()[0]
        if len(carries):
            kept = [guesses[place][: counts[place]] for place in carries.tolist()]
            token_ids = seal(np.concatenate(kept))
            draft.add_drafts(
                self._ledger, Drafts(seal(places[carries]), seal(counts[carries]), token_ids)
            )

    def awaits(self, slots: Longs, starts: Ints, confirmed: Ints) -> Bools:
        """Which of these rows rest until the last token is confirmed that they know of."""
        rests: Bools = (self._ledger.most_drafts[slots] > 0) & (starts >= confirmed)
        return rests

    def _decoding(self, rows: Rows) -> Longs:
        """The rows that compute their last known token alone: prefill chunks carry no drafts."""
        is_decoding = (rows.ends - rows.starts == 1) & (rows.ends == rows.confirmed)
        is_drafted = self._ledger.most_drafts[rows.slots] > 0
        places: Longs = (is_decoding & is_drafted).nonzero()[0]
        return places

    def _guesses(self, slots: Longs, confirmed: Ints, budget: int) -> list[Ints]:
        """What the drafter says for each row, within the budget and the sequence's end."""
        ledger = self._ledger
        most = np.minimum(ledger.most_drafts[slots], ledger.end[slots] - confirmed - 1)
        if int(most.sum()) > budget:
            most = fair_shares(most, budget)
        guesses: list[Ints] = []
        for slot, known, count in zip(
            slots.tolist(), confirmed.tolist(), most.tolist(), strict=True
        ):
            token_ids = ledger.tokens[slot, :known]
            token_ids.flags.writeable = False
            request = self._roster.at(slot).request
            guess = self._drafter.draft(request, token_ids, count) if count > 0 else ()
            assert len(guess) <= count, "a drafter gave more than it was asked for"
            guesses.append(frozen_ints(guess))
        return guesses

    def _cover(
        self, draft: StepDraft, slots: Longs, confirmed: Ints, reach: Ints, promised: int
    ) -> Ints:
        """How far each row's blocks go, once what is simply free has been handed out.

        While somebody waits nothing is; and every running row's next block is left to it.
        """
        ledger = self._ledger
        held = ledger.covered[slots] // self._size
        lacking = (-(-reach // self._size) - held).clip(min=0)
        spare = self._blocks.num_free - promised - len(self._roster.running)
        if len(self._roster.waiting):
            spare = 0
        wanted = np.clip(spare - (lacking.cumsum() - lacking), 0, lacking).astype(np.int32)
        grows = wanted.nonzero()[0]
        if len(grows):
            full = None
            if self._publisher is not None:
                full = self._publisher.take_full(slots, confirmed, draft.step)
            grown, wanted = slots[grows], wanted[grows]
            answer = self._blocks.reserve(full, grown, wanted, grows, NO_LONGS)
            draft.append_blocks(grown, held[grows], wanted, answer.block_ids)
            ledger.covered[grown] += wanted * self._size
        covered: Ints = ledger.covered[slots]
        return covered


def confirm_drafted(ledger: Ledger, plan: StepPlan, result: StepDone) -> tuple[Longs, Ints, Ints]:
    """What `Ledger.confirm` does, where rows carry drafts and may confirm several tokens.

    The (slots, tokens, lengths) that count are flat, a sequence's in order; what a row sampled
    behind an EOS or stop id is dropped, as nothing would have been sampled there without drafts.
    """
    assert plan.drafts is not None
    num_drafts = plan.drafts.per_row(len(plan.slots))
    slots, epochs, samples = plan.slots, plan.epochs, plan.samples
    ends = plan.starts + plan.lengths - num_drafts
    is_current = epochs == ledger.epoch[slots]
    ledger.written[slots[is_current]] = ends[is_current]
    drafted = slots[is_current & (num_drafts > 0)]
    slots, epochs, ends = slots[samples], epochs[samples], ends[samples]
    counts = np.ones(len(slots), dtype=np.int32) if result.counts is None else result.counts
    is_valid = (epochs >= ledger.valid_from[slots]) & (ends == ledger.confirmed[slots])
    rows, positions = _spread(ends, counts)
    is_kept = is_valid[rows]
    rows, lengths, token_ids = rows[is_kept], positions[is_kept] + 1, result.token_ids[is_kept]
    ended = [row for row, _ in ledger.ends(slots[rows], token_ids, lengths)]
    if ended:
        is_kept = ~_is_behind(rows, ended)
        rows, lengths, token_ids = rows[is_kept], lengths[is_kept], token_ids[is_kept]
    ledger.tokens[slots[rows], lengths - 1] = token_ids
    ledger.confirmed[slots] += np.bincount(rows, minlength=len(slots)).astype(np.int32)
    _lower(ledger, drafted)
    return slots[rows], token_ids, lengths


def _spread(starts: Ints, counts: Ints) -> tuple[Longs, Ints]:
    """(row, position) of each of the `counts` positions from a row's start."""
    rows = np.arange(len(counts)).repeat(counts)
    offsets = np.arange(len(rows), dtype=np.int32)
    offsets -= (counts.cumsum(dtype=np.int32) - counts)[rows]
    return rows, starts[rows] + offsets


def _is_behind(rows: Longs, ended: list[int]) -> Bools:
    """Which tokens follow one that ended their row's sequence; `rows` never falls."""
    ends = np.zeros(len(rows), dtype=np.int32)
    ends[ended] = 1
    before = ends.cumsum() - ends
    behind: Bools = before > before[np.searchsorted(rows, rows)]
    return behind


def _lower(ledger: Ledger, slots: Longs) -> None:
    """The KV of rejected drafts counts neither as scheduled nor as written."""
    ledger.scheduled[slots] = ledger.written[slots] = ledger.confirmed[slots] - 1
