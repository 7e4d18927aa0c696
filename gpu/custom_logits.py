"""CustomLogits: runs the logits processors of an embedding program, and contains their faults."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..messages import Adjustments, Floats, Ints, Longs, RowState
from .logits_processors import LogitsProcessor, LogitsProcessors, ProcessedRows
from .uploads import Upload


@dataclass(frozen=True, slots=True)
class ProcessorCall:
    """One processor and the rows of a step that it is called with."""

    name: str
    slots: Longs
    columns: tuple[Tensor, Tensor, Tensor, Tensor]  # on the device: rows, slots, positions, prompts
    longest: int  # of the positions
    arguments: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.slots)

    def alone(self) -> Iterator["ProcessorCall"]:
        """A call for each of its rows."""
        for row in range(len(self)):
            one = slice(row, row + 1)
            rows, slots, positions, prompts = (column[one] for column in self.columns)
            columns = rows, slots, positions, prompts
            yield ProcessorCall(
                self.name, self.slots[one], columns, self.longest, self.arguments[one]
            )


class CustomLogits:
    """Runs the processors that slots name, each for all its rows together."""

    def __init__(self, tokens: Tensor, processors: LogitsProcessors, upload: Upload) -> None:
        self._tokens = tokens
        self._upload = upload
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

    @torch.inference_mode()
    def apply(self, logits: Floats, at: Longs, slots: Longs, positions: Ints) -> None:
        """On the processor."""
        values = torch.from_numpy(logits)
        for call in self.calls(at, slots, positions):
            processor = self._processors[call.name]
            for part, is_spoiled in run_call(call, processor, values, self._tokens, self.faults):
                for slot in part.slots[is_spoiled.nonzero()[:, 0].tolist()].tolist():
                    self.faults.setdefault(slot, spoiled_by(call.name))

    def calls(self, at: Longs, slots: Longs, positions: Ints) -> Iterator[ProcessorCall]:
        """The calls for rows `at` of a step, in their order, that sample positions of slots which
        name some."""
        calls = [self._calls[slot] for slot in slots.tolist()]
        for place in range(max(map(len, calls))):
            by_name: dict[str, list[int]] = {}
            for row, own in enumerate(calls):
                if place < len(own):
                    by_name.setdefault(own[place][0], []).append(row)
            for name, rows in by_name.items():
                arguments = tuple(calls[row][place][1] for row in rows)
                own_slots, ends = slots[rows], positions[rows]
                columns = at[rows], own_slots, ends, self._prompts[own_slots]
                where, whose, behind, prompts = self._upload(columns)
                there = where, whose, behind, prompts
                yield ProcessorCall(name, own_slots, there, int(ends.max()), arguments)


def run_call(
    call: ProcessorCall,
    processor: LogitsProcessor,
    logits: Tensor,
    tokens: Tensor,
    faults: dict[int, str],
) -> Iterator[tuple[ProcessorCall, Tensor]]:
    """Change rows of float32 logits [rows, vocab], by tokens of slots; gives the calls that were
    made and which of their rows they spoiled.  # bool, on the device

    A call that raises is made for each row alone. A row whose call raises is spoiled, and `faults`
    say why, by slot.
    """
    device = logits.device
    at, slots, ends, prompts = call.columns
    said = tokens[slots, : call.longest]
    behind = torch.arange(call.longest, device=device) >= ends.unsqueeze(1)
    rows = ProcessedRows(said.masked_fill(behind, -1), ends, prompts, call.arguments)
    part = logits[at]
    was_number = _are_numbers(part)
    try:
        processor(part, rows)
    except Exception as error:  # whatever it raises is the fault of a request, not of the step
        if len(call) > 1:  # one of them alone may be at fault
            for one in call.alone():
                yield from run_call(one, processor, logits, tokens, faults)
            return
        part.fill_(torch.nan)
        raised = f"raised {type(error).__name__}: {error}"
        faults[int(call.slots[0])] = f"the logits processor {call.name!r} {raised}"
    logits[at] = part
    yield call, was_number & ~_are_numbers(part)


def spoiled_by(name: str) -> str:
    """What is said of a row whose logits a processor spoiled without raising anything."""
    return f"the logits processor {name!r} made logits that are not numbers"


def _are_numbers(logits: Tensor) -> Tensor:
    """Whether no logit of a row is NaN or infinite; minus infinity is a ban.  # [rows]"""
    return logits.amax(dim=-1) < torch.inf
