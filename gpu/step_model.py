"""StepModel: what a runner computes with, whichever way a model is bound."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from ..messages import StepPlan
from ..messages.arrays import Floats, Ints
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

    def logits_behind(self, tokens: Tensor) -> Tensor:
        """Logits behind tokens of the plan that was computed last, by their places in it.
        # tokens [places], int64; → [places, vocab]"""
        ...

    def close(self) -> None:
        """Give back what the collector would not. Idempotent."""
        ...


@runtime_checkable
class ChoosesLikeliest(Protocol):
    """A model that can tell the likeliest tokens without writing all logits down."""

    def likeliest(self, plan: StepPlan, tables: SlotTables) -> tuple[Ints, Floats]:
        """Compute a plan that the tables have taken over; of each place that it samples the token
        of the highest logit, the first of equal ones, and that logit: NaN where any is.
        # both [num_samples]"""
        ...


class TorchModel:
    """A decoder made of torch's operations, over paged attention."""

    def __init__(self, decoder: Decoder, kv: PagedKV) -> None:
        self._decoder = decoder
        self._kv = kv
        self._workspace = Workspace()
        self._hidden: Tensor | None = None  # of the last plan's tokens  # [tokens, hidden]

    def logits(self, plan: StepPlan, tables: SlotTables) -> Tensor:
        inputs = make_inputs(plan, tables)
        attention = StepAttention(inputs, self._kv, self._workspace)
        self._hidden = self._decoder.forward(inputs, attention)
        return self.logits_behind(inputs.sampling_tokens)

    def logits_behind(self, tokens: Tensor) -> Tensor:
        assert self._hidden is not None, "nothing was computed"
        return self._decoder.head(self._hidden.index_select(0, tokens))

    def close(self) -> None:
        """Everything is torch's own."""
