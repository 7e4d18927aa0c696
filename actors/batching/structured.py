"""Structured rows (rule 23): every sampling row under a grammar gets exactly one mask.

Where the last token is confirmed when the row is planned, its mask goes with the plan. Where a step
in flight still samples that token, the row is held: it is computed, but sampled only when its mask
comes, which is in the turn that applies that step. If its sequence was voided meanwhile, a void
mask comes instead: the device may sample anything, since it will not count.

To find out what a sequence may say takes 0.1 ms, and can take milliseconds. Once a turn has spent
enough on that, the tokens of other sequences wait for the next turn, which follows at once but lets
the event loop do something else before. So masks come later, and are the same.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

from ...messages import (
    NO_INTS,
    NO_LONGS,
    Bools,
    Ints,
    Longs,
    RowMasks,
    SampleRows,
    frozen_longs,
    same,
    seal,
)
from .draft import StepDraft
from .grammar import Grammars
from .jumps import Jumps
from .ledger import Ledger
from .report import Report
from .retracing import retrace
from .sequence import Sequence
from .steps import StepsInFlight

TURN_COST = 128  # of the grammars of a turn, from which on the next one goes on: 1 to 2 ms


class StructuredRows:
    """Knows which rows are held in posted steps, and what their sequences may say."""

    def __init__(
        self,
        ledger: Ledger,
        steps: StepsInFlight,
        grammars: Grammars | None,
        report: Report,
        *,
        may_hold: bool,
    ) -> None:
        self._ledger = ledger
        self._steps = steps
        self._grammars = grammars
        self._jumps = Jumps(ledger, report)
        self._may_hold = may_hold  # whether the device samples held rows later
        self._held: dict[int, list[int]] = {}  # by step, its rows that have no mask yet
        self._behind: deque[Sequence] = deque()  # whose grammar has not seen its last token
        self._spent = 0  # in this turn

    # Grammars

    def open(self, sequence: Sequence) -> str | None:
        """Its grammar was compiled; returns why the sequence cannot go on with it."""
        if self._grammars is None:
            return "this engine has no grammars"
        sequence.grammar = self._grammars.open(sequence.request)
        return None if sequence.grammar.is_over else self._note_mask(sequence)

    def begin_turn(self) -> None:
        self._spent = 0

    def put_off(self, sequence: Sequence) -> None:
        """A token was confirmed; `take_behind` tells of it in this turn or in a later one."""
        self._behind.append(sequence)

    @property
    def is_behind(self) -> bool:
        """Whether grammars have tokens to see in the next turn."""
        return bool(self._behind)

    def take_behind(self) -> Iterator[Sequence]:
        """Sequences to advance by their last token, as many as the turn has room for."""
        while self._behind and (self._spent < TURN_COST or not self._may_hold):
            yield self._behind.popleft()

    def advance(self, sequence: Sequence) -> str | None:
        """Let its grammar see its last token; returns why the sequence cannot go on."""
        grammar, token_id = sequence.grammar, self._ledger.last_token(sequence)
        assert grammar is not None
        if not grammar.accept(token_id):
            return f"token {token_id} is not what the grammar allows"
        if not grammar.is_over:
            self._jumps.take(sequence)
        error = None if grammar.is_over else self._note_mask(sequence)
        self._spent += grammar.cost
        return error

    def reopen(self, sequence: Sequence, said: Ints) -> None:
        """It comes from elsewhere without its grammar: open it again, if it was open, and lead it
        along what was said. Raises ValueError where it does not allow what it allowed."""
        sequence.grammar = None
        if not len(sequence.mask):  # it still waits for it, or has none
            return
        if self._grammars is None:
            raise ValueError("a request has a structured output, and there are no grammars")
        sequence.grammar = self._grammars.open(sequence.request)
        seen = said[:-1] if sequence in self._behind else said
        if not same(retrace(sequence.grammar, sequence.request, seen.tolist()), sequence.mask):
            raise ValueError("a structured output goes on in another way; is the model another?")

    @staticmethod
    def _note_mask(sequence: Sequence) -> str | None:
        assert sequence.grammar is not None
        sequence.mask = sequence.grammar.mask()
        return None if sequence.mask.any() else "the grammar allows no token here"

    # Planning

    def awaits(self, slots: Longs, starts: Ints, confirmed: Ints) -> Bools | bool:
        """Which of these rows rest until their last token is confirmed: none, if rows are held."""
        return False if self._may_hold else self._is_structured(slots) & (starts >= confirmed)

    def extend(self, draft: StepDraft) -> None:
        """Give the rows of a finished step their masks, or hold them."""
        rows = draft.rows()
        if rows is None:
            return
        if self._ledger.untold:
            self._jumps.tell(draft)
        samples = self._is_structured(rows.slots) & (rows.ends >= rows.confirmed)
        if not np.count_nonzero(samples):
            return
        is_known = (rows.ends == rows.confirmed) & ~self._are_behind(rows.slots)
        known, held = (samples & is_known).nonzero()[0], (samples & ~is_known).nonzero()[0]
        words = self._words(rows.slots[known], rows.ends[known])
        draft.masks = RowMasks(frozen_longs(known), words, frozen_longs(held))
        if len(held):
            self._held[draft.step] = held.tolist()

    def _is_structured(self, slots: Longs) -> Bools:
        structured = self._ledger.structured
        return np.fromiter((slot in structured for slot in slots.tolist()), np.bool_, len(slots))

    def _words(self, slots: Longs, ends: Ints) -> Ints:
        """The masks of these slots for the tokens at `ends`, flat."""
        columns = zip(slots.tolist(), ends.tolist(), strict=True)
        masks = [self._mask(slot, end) for slot, end in columns]
        return seal(np.concatenate(masks)) if masks else NO_INTS

    def _mask(self, slot: int, end: int) -> Ints:
        """What the grammar allows next; where it has jumped further, what it said there."""
        sequence, ledger = self._ledger.sequences[slot], self._ledger
        assert sequence is not None
        if end == ledger.confirmed[slot]:
            return sequence.mask
        token_id = int(ledger.tokens[slot, end])
        mask = np.zeros_like(sequence.mask)
        mask[token_id // 32] = np.int32(np.uint32(1 << token_id % 32).view(np.int32))
        return mask

    # Held rows

    def take_due(self) -> list[SampleRows]:
        """The masks that can be told by now, a message for each step."""
        if not self._held:
            return []
        plans = {plan.step: plan for plan in self._steps}
        due: list[SampleRows] = []
        for step in list(self._held):
            if step not in plans:
                del self._held[step]  # it was answered without its masks: it failed
                continue
            rows = np.array(self._held[step], dtype=np.int64)
            plan, ledger = plans[step], self._ledger
            slots = plan.slots[rows]
            is_void = plan.epochs[rows] < ledger.valid_from[slots]
            ends = (plan.starts + plan.lengths)[rows]
            is_known = ~is_void & self._is_known(slots, ends)
            if not np.count_nonzero(is_void | is_known):
                continue
            words = self._words(slots[is_known], ends[is_known])
            void = frozen_longs(rows[is_void]) if np.count_nonzero(is_void) else NO_LONGS
            due.append(SampleRows(step, frozen_longs(rows[is_known]), words, void))
            self._keep(step, rows[~(is_void | is_known)].tolist())
        return due

    def _is_known(self, slots: Longs, ends: Ints) -> Bools:
        """Whether the token before the one that is sampled at `ends` is confirmed."""
        is_known: Bools = self._ledger.confirmed[slots] >= ends
        return is_known & ~self._are_behind(slots)

    def _are_behind(self, slots: Longs) -> Bools:
        """Whose grammar has not seen the last confirmed token."""
        if not self._behind:
            return np.zeros(len(slots), dtype=np.bool_)
        return np.isin(slots, [s.slot for s in self._behind if s.slot is not None])

    def _keep(self, step: int, rows: list[int]) -> None:
        if rows:
            self._held[step] = rows
        else:
            del self._held[step]

    def check(self) -> None:
        """Every row without a mask waits for a token that an earlier step in flight samples, or
        that its grammar has not seen."""
        # (slot, position) of tokens on their way
        sampled: set[tuple[int | None, int]] = {
            (sequence.slot, int(self._ledger.confirmed[sequence.slot]) - 1)
            for sequence in self._behind
            if sequence.slot is not None
        }
        for plan in self._steps:
            ends = (plan.starts + plan.lengths).tolist()
            slots = plan.slots.tolist()
            for row in self._held.get(plan.step, ()):
                assert (slots[row], ends[row] - 1) in sampled, "a held row waits for nothing"
                is_void = plan.epochs[row] < self._ledger.valid_from[slots[row]]
                assert not is_void, "a held row that does not count got no mask"
            sampled.update((slots[row], ends[row]) for row in plan.samples.nonzero()[0].tolist())
