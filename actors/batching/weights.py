"""Other weights: what the old ones computed is void before the device loads them (rule 27)."""

from .block_client import BlockClient
from .ledger import Ledger
from .roster import Roster
from .steps import StepsInFlight


class WeightReset:
    """From the wish for other weights until they are loaded no step is planned.

    Sequences stay live: they keep their confirmed tokens and their places, and may end or come
    meanwhile. Afterwards they are computed anew, by admission.
    """

    def __init__(
        self, ledger: Ledger, roster: Roster, blocks: BlockClient, steps: StepsInFlight
    ) -> None:
        self._ledger = ledger
        self._roster = roster
        self._blocks = blocks
        self._steps = steps
        self._source: str | None = None  # what the device is to load
        self._is_loading = False

    @property
    def is_awaited(self) -> bool:
        """Whether other weights are wanted and not loaded yet."""
        return self._source is not None

    def want(self, source: str) -> None:
        assert self._source is None, "weights are being loaded already"
        self._source = source

    def begin_loading(self) -> str | None:
        """What the device is to load now: said once, when no step is in flight any more. From
        here on nothing that was computed counts, and nothing is cached."""
        if self._source is None or self._is_loading or len(self._steps):
            return None
        self._void_everything()
        self._is_loading = True
        return self._source

    def loaded(self) -> None:
        """The device has the new weights, or kept the old ones: steps may be planned again."""
        assert self._is_loading
        self._source, self._is_loading = None, False

    def _void_everything(self) -> None:
        """Those who wait may hold blocks, too, or an image in host memory."""
        for sequence in self._roster:
            if sequence.slot is None:
                continue
            self._blocks.release(sequence.slot)
            self._ledger.preempt(sequence.slot, kept_blocks=0)
            self._ledger.void(sequence.slot)
            if self._roster.is_running(sequence):
                self._roster.send_back(sequence)
        self._blocks.tell()
        self._blocks.forget_prefixes()
