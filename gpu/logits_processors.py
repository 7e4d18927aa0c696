"""Logits processors: functions of an embedding program that change the logits of some rows.

A processor sees all rows of a step that name it at once. It must keep nothing between calls: what
it does may depend on the rows' tokens and arguments only, or preemption and drafts would show.
"""

from __future__ import annotations  # the types are torch's, which is not needed to name them

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ProcessedRows:
    """What a processor may know of its rows."""

    token_ids: Tensor  # [rows, longest] prompt and answer so far; -1 behind them
    num_tokens: Tensor  # [rows] of them
    num_prompt_tokens: Tensor  # [rows]
    arguments: tuple[str, ...]  # what stands behind `name=` in each request


class LogitsProcessor(Protocol):
    """Changes logits in place, on the device's own thread, without gradients."""

    def __call__(self, logits: Tensor, rows: ProcessedRows, /) -> None:
        """`logits` are float32 [rows, vocab]; minus infinity makes a token impossible."""
        ...


LogitsProcessors: TypeAlias = Mapping[str, LogitsProcessor]
"""Those of an engine, by the name that requests call them by."""
