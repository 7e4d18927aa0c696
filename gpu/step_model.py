"""StepModel: what a runner computes with, whichever way a model is bound. Numpy only, no torch."""

from typing import Protocol, runtime_checkable

from ..messages import Floats, Ints, Longs, StepPlan
from .slots import SlotTables


class StepModel(Protocol):
    """A model that is bound to its KV memory."""

    def logits(self, plan: StepPlan, tables: SlotTables) -> Floats:
        """Compute a plan that the tables have taken over; logits of each place that it samples.
        They are the caller's, to change as well, until the next plan.  # [num_samples, vocab]"""
        ...

    def logits_behind(self, tokens: Longs) -> Floats:
        """Logits behind tokens of the plan that was computed last, by their places in it.
        # [places, vocab]"""
        ...

    def close(self) -> None:
        """Give back what the collector would not. Idempotent."""
        ...


@runtime_checkable
class ChoosesLikeliest(Protocol):
    """A model that can tell the likeliest tokens without writing all logits down."""

    def likeliest(self, plan: StepPlan, tables: SlotTables) -> Ints:
        """Compute a plan that the tables have taken over; of each place that it samples the token
        of the highest logit, the first of equal ones, or why it has none (`row_failures`).
        # [num_samples]"""
        ...
