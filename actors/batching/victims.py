"""Who may give way, the least important first (rules 10 and 11)."""

from bisect import bisect_left

import numpy as np

from ...messages import NO_LONGS, Longs, frozen_longs, seal
from .ledger import Ledger
from .roster import Roster
from .sequence import Sequence


class Victims:
    """Looks for those that hold blocks, among who runs and who waits.

    `order` is always the running order as it was when the turn began; who was admitted since is
    spared, and who was preempted since counts as waiting.
    """

    def __init__(self, ledger: Ledger, roster: Roster) -> None:
        self._ledger = ledger
        self._roster = roster

    def of_growth(self, order: Longs, first: int) -> tuple[Longs, Longs]:
        """Who may give way for running rows from rank `first` on, as slots and ranks.

        Later rows serve earlier ones. Whoever waits serves every row, whatever its importance, so
        that what waits never stops what runs; its rank is behind everybody.
        """
        running = np.isin(order, self._roster.running.slots)
        later = running.nonzero()[0][::-1]
        later = later[later > first]
        slots, ranks = order[later], later
        holders = self._roster.holders()
        if holders:
            places = [self._place(order, holder) for holder in holders]
            at = len(later) - np.searchsorted(later[::-1], places)
            held = [holder.slot for holder in reversed(holders) if holder.slot is not None]
            slots = np.insert(slots, at[::-1], held)
            ranks = np.insert(ranks, at[::-1], len(order))
        return frozen_longs(slots), frozen_longs(ranks)

    def of_admission(self, sequence: Sequence, lesser: Longs) -> Longs:
        """Who may give way for a waiting sequence: running slots of lower classes, which are
        given in their order, and whoever waits after it."""
        waiting = [other for other in self._roster.holders() if other.order > sequence.order]
        if not waiting:
            return seal(lesser[::-1].copy()) if len(lesser) else NO_LONGS
        both = [*map(self._roster.at, lesser.tolist()), *waiting]
        both.sort(key=lambda other: other.order, reverse=True)
        return frozen_longs(other.slot for other in both if other.slot is not None)

    def _place(self, order: Longs, holder: Sequence) -> int:
        """The rank of the first in the order that is less important."""
        return bisect_left(
            range(len(order)),
            holder.order,
            key=lambda rank: self._roster.at(int(order[rank])).order,
        )
