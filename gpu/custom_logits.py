"""CustomLogits: runs the logits processors of an embedding program, and contains their faults."""

import numpy as np
import torch
from torch import Tensor

from ..messages import Adjustments, Ints, Longs, RowState
from .logits_processors import LogitsProcessors, ProcessedRows


class CustomLogits:
    """Runs the processors that slots name, each for all its rows together."""

    def __init__(self, tokens: Tensor, processors: LogitsProcessors) -> None:
        self._tokens = tokens
        self._processors = processors
        self._prompts = np.zeros(len(tokens), dtype=np.int64)
        self._calls: dict[int, list[tuple[str, str]]] = {}  # by slot: names and arguments
        self.faults: dict[int, str] = {}  # by slot, why it cannot be sampled in this step

    def uses(self, adjustments: Adjustments) -> bool:
        return len(adjustments.logits_processors) > 0

    def start(self, row: RowState, adjustments: Adjustments) -> None:
        self._prompts[row.slot] = row.num_prompt_tokens
        parts = (text.partition("=") for text in adjustments.logits_processors)
        self._calls[row.slot] = [(name, argument) for name, _, argument in parts]

    def forget(self, slot: int) -> None:
        self._calls.pop(slot, None)

    def apply(self, logits: Tensor, at: Longs, slots: Longs, positions: Ints) -> None:
        calls = [self._calls[slot] for slot in slots.tolist()]
        for place in range(max(map(len, calls))):
            by_name: dict[str, list[int]] = {}
            for row, own in enumerate(calls):
                if place < len(own):
                    by_name.setdefault(own[place][0], []).append(row)
            for name, rows in by_name.items():
                arguments = tuple(calls[row][place][1] for row in rows)
                self._run(name, logits, at[rows], slots[rows], positions[rows], arguments)

    def _run(
        self,
        name: str,
        logits: Tensor,
        at: Longs,
        slots: Longs,
        positions: Ints,
        arguments: tuple[str, ...],
    ) -> None:
        rows = torch.from_numpy(at).to(logits.device)
        part = logits[rows]
        was_number = _are_numbers(part)
        try:
            self._processors[name](part, self._about(slots, positions, arguments))
        except Exception as error:  # whatever it raises is the fault of a request, not of the step
            if len(at) > 1:  # one of them alone may be at fault
                for row in range(len(at)):
                    one = slice(row, row + 1)
                    self._run(name, logits, at[one], slots[one], positions[one], arguments[one])
                return
            part.fill_(torch.nan)
            self.faults[int(slots[0])] = (
                f"the logits processor {name!r} raised {type(error).__name__}: {error}"
            )
        spoiled = (was_number & ~_are_numbers(part)).nonzero()[:, 0].tolist()
        for slot in slots[spoiled].tolist():
            made = f"the logits processor {name!r} made logits that are not numbers"
            self.faults.setdefault(slot, made)
        logits[rows] = part

    def _about(self, slots: Longs, positions: Ints, arguments: tuple[str, ...]) -> ProcessedRows:
        device = self._tokens.device
        of_slots = torch.from_numpy(slots).to(device)
        ends = torch.from_numpy(positions).to(device)
        tokens = self._tokens[of_slots, : int(positions.max())]
        behind = torch.arange(tokens.shape[1], device=device) >= ends.unsqueeze(1)
        prompts = torch.from_numpy(self._prompts[slots]).to(device)
        return ProcessedRows(tokens.masked_fill(behind, -1), ends, prompts, arguments)


def _are_numbers(logits: Tensor) -> Tensor:
    """Whether no logit of a row is NaN or infinite; minus infinity is a ban.  # [rows]"""
    return logits.amax(dim=-1) < torch.inf
