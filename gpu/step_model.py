"""StepModel: what a runner computes with, whichever way a model is bound."""

from typing import Protocol

from torch import Tensor

from ..messages import StepPlan
from .attention import StepAttention, Workspace
from .inputs import make_inputs
from .kv import PagedKV
from .models.opening import Decoder
from .slots import SlotTables


class StepModel(Protocol):
    """A model that is bound to its KV memory."""

    def logits(self, plan: StepPlan, tables: SlotTables) -> Tensor:
        """Compute a plan that the tables have taken over; logits of each place that it samples.
        # [num_samples, vocab]"""
        ...

    def close(self) -> None:
        """Give back what the collector would not. Idempotent."""
        ...


class TorchModel:
    """A decoder made of torch's operations, over paged attention."""

    def __init__(self, decoder: Decoder, kv: PagedKV) -> None:
        self._decoder = decoder
        self._kv = kv
        self._workspace = Workspace()

    def logits(self, plan: StepPlan, tables: SlotTables) -> Tensor:
        inputs = make_inputs(plan, tables)
        return self._decoder.forward(inputs, StepAttention(inputs, self._kv, self._workspace))

    def close(self) -> None:
        """Everything is torch's own."""
