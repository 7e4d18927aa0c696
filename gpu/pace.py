"""How many token positions a step of a processor takes on, so that nobody waits long for it.

An estimate by the arithmetic of products alone, right within a factor of two: enough for a limit.
"""

from dataclasses import dataclass

from .models.config import ModelConfig
from .roofline import cost_of

_STEP_S = 0.2  # of products; attention comes on top
_FAIR_S = 0.06  # for a prompt beside others: with attention, and theirs, 0.1 s
_QUANTUM = 16  # positions that a limit is a multiple of


@dataclass(frozen=True, slots=True)
class Pace:
    """Positions of a step, and of one prompt in a step while others want to run."""

    step_tokens: int
    fair_chunk: int


USUAL = Pace(step_tokens=512, fair_chunk=160)
"""Where nothing is known: about right for a small model, and the most: longer is no quicker."""
_LEAST = Pace(step_tokens=128, fair_chunk=32)  # below this, reading weights is what takes the time


def pace_of(config: ModelConfig, products_per_s: float) -> Pace:
    """For a model, at so many products of a weight and an activation per second in all."""
    positions_per_s = products_per_s / cost_of(config).body_params
    return Pace(
        step_tokens=_within(_LEAST.step_tokens, positions_per_s * _STEP_S, USUAL.step_tokens),
        fair_chunk=_within(_LEAST.fair_chunk, positions_per_s * _FAIR_S, USUAL.fair_chunk),
    )


def _within(least: int, positions: float, most: int) -> int:
    return max(least, min(int(positions) // _QUANTUM * _QUANTUM, most))
