"""How many token positions a step of a processor takes on, so that nobody waits long for it.

An estimate by arithmetic, right within a factor of two: enough for a limit.
"""

from dataclasses import dataclass

from .models.config import ModelConfig
from .roofline import cost_of

_STEP_S = 0.2  # of products; attention comes on top
_FAIR_S = 0.1  # for a prompt beside others, attention counted
_ATTENTION_RATE = 0.5  # of the rate of products
_QUANTUM = 16  # positions that a limit is a multiple of


@dataclass(frozen=True, slots=True)
class Pace:
    """Positions of a step, and of one prompt in a step while others want to run: so many without
    context, and one behind `doubling_context` others counts twice."""

    step_tokens: int
    fair_chunk: int
    doubling_context: int | None = None  # None: all count the same


USUAL = Pace(step_tokens=512, fair_chunk=160)
"""Where nothing is known: about right for a small model."""
_LEAST = Pace(step_tokens=128, fair_chunk=48)
"""Below this, reading weights is what takes the time: of 48, the first chunks are rounded to 32."""
_MOST = Pace(step_tokens=512, fair_chunk=256)  # longer is no quicker


def pace_of(config: ModelConfig, products_per_s: float) -> Pace:
    """For a model, at so many products of a weight and an activation per second in all."""
    cost = cost_of(config)
    positions_per_s = products_per_s / cost.body_params
    attended = 2 * cost.attention_width  # products of a position with one of its context
    return Pace(
        step_tokens=_within(_LEAST.step_tokens, positions_per_s * _STEP_S, _MOST.step_tokens),
        fair_chunk=_within(_LEAST.fair_chunk, positions_per_s * _FAIR_S, _MOST.fair_chunk),
        doubling_context=int(cost.body_params / attended * _ATTENTION_RATE),
    )


def _within(least: int, positions: float, most: int) -> int:
    return max(least, min(int(positions) // _QUANTUM * _QUANTUM, most))
