"""The roster: which sequences are live, and whether each runs or waits."""

from collections.abc import Iterator

from .ledger import Ledger
from .order import RunningOrder, WaitingQueue
from .sequence import Sequence


class Roster:
    """Owns the sequences. One that waits may still hold the first of its blocks (rule 16)."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._live: dict[int, Sequence] = {}
        self.running = RunningOrder()
        self.waiting = WaitingQueue()
        self.preemptions = 0
        self.swaps = 0  # how often a sequence came back from host memory

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, serial: int) -> bool:
        return serial in self._live

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._live.values())

    def get(self, serial: int) -> Sequence | None:
        return self._live.get(serial)

    def at(self, slot: int) -> Sequence:
        """The sequence that has this slot."""
        sequence = self._ledger.sequences[slot]
        assert sequence is not None, f"slot {slot} is vacant"
        return sequence

    def is_running(self, sequence: Sequence) -> bool:
        return sequence in self.running

    def holds_blocks(self, sequence: Sequence) -> bool:
        return sequence.slot is not None and bool(self._ledger.covered[sequence.slot])

    def holders(self) -> list[Sequence]:
        """The sequences that wait and hold blocks, the most important first."""
        if self._ledger.num_taken == len(self.running):
            return []  # only who runs has a slot
        holds = self._ledger.covered > 0
        holds[self.running.slots] = False
        holders = [self.at(slot) for slot in holds.nonzero()[0].tolist()]
        return sorted(holders, key=lambda sequence: sequence.order)

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits."""
        self._live[sequence.request.serial] = sequence
        self.waiting.add(sequence)

    def run(self, sequence: Sequence, *, is_swapped: bool = False) -> None:
        """A waiting sequence has got a slot and blocks, some of them from host memory or none."""
        self.swaps += is_swapped
        self.waiting.remove(sequence)
        self.running.add(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """A running sequence waits again, in its old place; it keeps its slot (rule 6)."""
        self.preemptions += 1
        sequence.preemptions += 1
        self.send_back(sequence)

    def send_back(self, sequence: Sequence) -> None:
        """The same without anybody having taken its place."""
        self.running.remove(sequence)
        self.waiting.add(sequence)

    def raise_class(self, sequence: Sequence) -> None:
        """A waiting sequence gains a class."""
        self.waiting.remove(sequence)
        sequence.raised += 1
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence ended, in whatever state; its slot frees up behind its last step."""
        del self._live[sequence.request.serial]
        (self.running if self.is_running(sequence) else self.waiting).remove(sequence)
        if sequence.slot is not None:
            self._ledger.vacate(sequence.slot)
