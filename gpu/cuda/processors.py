"""ProcessorCalls: the embedding program's logits processors on the device, for one step.

They run when a step is queued, with tensors of the device, so what one raises is known at once.
That one spoiled a row is known to the device only: such a row's sample says so in place of a token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...messages import Ints, Longs
from ..custom_logits import ProcessorCall, run_call, spoiled_by
from ..logits_processors import LogitsProcessors
from ..row_failures import NOT_NUMBERS

_SPOILED = -3  # by the first call of the step; one less for each that follows


class ProcessorCalls:
    """The calls of one step, and what came of them."""

    def __init__(self, calls: Sequence[ProcessorCall], processors: LogitsProcessors) -> None:
        self._calls = calls
        self._processors = processors
        self._raised: dict[int, str] = {}
        self._spoilers: Tensor | None = None  # [rows] of int32: which call spoiled each; 0: none

    # Queued work

    def apply(self, logits: Tensor, tokens: Tensor) -> None:
        """Change float32 logits [rows, vocab] in place, by tokens of slots."""
        spoilers = torch.zeros(len(logits), dtype=torch.int32, device=logits.device)
        for number, call in enumerate(self._calls):
            processor = self._processors[call.name]
            for part, is_spoiled in run_call(call, processor, logits, tokens, self._raised):
                at = part.columns[0]
                known = spoilers[at]
                spoiler = is_spoiled.int() * (_SPOILED - number)
                spoilers[at] = torch.where(known == 0, spoiler, known)
        self._spoilers = spoilers

    def marked(self, sampled: Tensor) -> Tensor:
        """What was sampled, where a row that is no number says which call spoiled it."""
        spoilers, self._spoilers = self._spoilers, None
        assert spoilers is not None
        return torch.where((sampled == NOT_NUMBERS) & (spoilers < 0), spoilers, sampled)

    # The result

    def faults(self, sampled: Ints, slots: Longs) -> dict[int, str]:
        """By slot, why rows have no sample that processors are to blame for; of what `marked`
        gave, and the slots of the same rows."""
        is_spoiled = sampled <= _SPOILED
        numbers = _SPOILED - sampled[is_spoiled]
        found = {
            slot: spoiled_by(self._calls[number].name)
            for slot, number in zip(slots[is_spoiled].tolist(), numbers.tolist(), strict=True)
        }
        return found | self._raised
