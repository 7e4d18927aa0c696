"""What one answer takes from victims, and what the next step copies for it."""

from ..messages import (
    NO_INTS,
    NO_LONGS,
    AdmitSequence,
    Copies,
    Ints,
    Longs,
    ReserveBlocks,
    frozen_ints,
    frozen_longs,
)


class Tails:
    """Collects the tails that are cut while a question is answered."""

    def __init__(self, ask: ReserveBlocks | AdmitSequence) -> None:
        self.fences: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        if len(ask.victims):
            victims = ask.victims.tolist()
            self.fences.update(zip(victims, ask.fences.tolist(), strict=True))
            self.tokens.update(zip(victims, ask.victim_tokens.tolist(), strict=False))
        self.kept: dict[int, int] = {}  # blocks that those who gave way still hold, by slot
        self._saved: dict[int, int] = {}
        self._step = ask.posted + 1  # the step that will copy
        self._out: list[tuple[int, int]] = []  # (device block, host block)
        self._in: list[tuple[int, int]] = []  # (host block, device block)

    def save(self, slot: int, blocks: list[int], hosts: list[int]) -> int:
        """Blocks of a victim are copied to host memory; returns the step that now fences it."""
        self._out += zip(blocks, hosts, strict=True)
        self._saved[slot] = self._saved.get(slot, 0) + len(blocks)
        if blocks:
            self.fences[slot] = self._step
        return self.fences[slot]

    def load(self, hosts: list[int], blocks: list[int]) -> None:
        """Host blocks are copied to these device blocks."""
        self._in += zip(hosts, blocks, strict=True)

    def columns(self) -> tuple[Longs, Ints, Ints]:
        """Who gave way, what each keeps, and what of each is saved."""
        if not self.kept:
            return NO_LONGS, NO_INTS, NO_INTS
        saved = (self._saved.get(slot, 0) for slot in self.kept)
        return frozen_longs(self.kept), frozen_ints(self.kept.values()), frozen_ints(saved)

    def copies(self) -> Copies | None:
        if not self._out and not self._in:
            return None
        return Copies(*_columns(self._out), *_columns(self._in))


def _columns(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    if not pairs:
        return NO_INTS, NO_INTS
    first, second = zip(*pairs, strict=True)
    return frozen_ints(first), frozen_ints(second)
