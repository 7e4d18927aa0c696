"""Jumps: what a grammar forces is confirmed at once, and computed as one chunk like a prompt.

    before   0 ........ scheduled | confirmed                    the grammar leaves no choice
    jumped   0 ........ scheduled | ............ confirmed       no step samples what lies between

Rows in flight may sample some of it: they get masks that allow just that, and their results count
no more, since their base position is not the last confirmed one any longer (rule 5). The device is
told the rest with the next plan that runs the slot.
"""

import numpy as np

from ...messages import NO_LONGS, Generate, ToldTokens, frozen_ints, frozen_longs, seal
from .draft import StepDraft
from .grammar import Grammar
from .ledger import Ledger
from .report import Report
from .sequence import Sequence


class Jumps:
    """Takes forced tokens, and knows which of them the device was not told."""

    def __init__(self, ledger: Ledger, report: Report) -> None:
        self._ledger = ledger
        self._report = report

    def take(self, sequence: Sequence) -> None:
        """Confirm what its grammar forces now, up to a stop id; the last token that it may have is
        always sampled, so that ends are found in one place."""
        ledger, slot, request = self._ledger, sequence.slot, sequence.request
        assert sequence.grammar is not None
        # Without a slot it lost its place before its grammar saw the token.
        num_confirmed = len(sequence.tokens) if slot is None else int(ledger.confirmed[slot])
        left = len(request.prompt) + request.max_tokens - num_confirmed
        taken = take_forced(sequence.grammar, request, left)
        if taken:
            if slot is None:
                sequence.tokens = frozen_ints([*sequence.tokens.tolist(), *taken])
            else:
                ledger.jump(slot, frozen_ints(taken))
            serial = frozen_longs((request.serial,))
            self._report.add_tokens(serial.repeat(len(taken)), frozen_ints(taken))

    def tell(self, draft: StepDraft) -> None:
        """Let the device know what the rows of this step build on."""
        ledger, rows = self._ledger, draft.rows()
        slots = NO_LONGS if rows is None else rows.slots[np.isin(rows.slots, list(ledger.untold))]
        if not len(slots):
            return
        starts = frozen_ints([ledger.untold.pop(slot) for slot in slots.tolist()])
        parts = [
            ledger.tokens[slot, start : ledger.confirmed[slot]]
            for slot, start in zip(slots.tolist(), starts.tolist(), strict=True)
        ]
        counts = frozen_ints([len(part) for part in parts])
        draft.told = ToldTokens(frozen_longs(slots), starts, counts, seal(np.concatenate(parts)))


def take_forced(grammar: Grammar, request: Generate, left: int) -> list[int]:
    """Advance a grammar by what it forces, up to a stop id, where so many tokens are left: the last
    of them is not taken."""
    room = left - 1
    taken: list[int] = []
    for token_id in grammar.forced() if room > 0 else ():
        if len(taken) == room or token_id in request.stop_token_ids:
            break
        is_allowed = grammar.accept(token_id)
        assert is_allowed, "a grammar refuses what it forces"
        taken.append(token_id)
    return taken
