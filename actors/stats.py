"""What an engine tells of itself."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts at this moment; the totals are since the engine was started."""

    running: int  # sequences
    waiting: int  # sequences, those preempted included
    blocks_total: int
    blocks_held: int  # that sequences refer to
    blocks_due: int  # released, but mentioned by a step in flight
    blocks_free: int  # cached ones included
    blocks_cached: int  # that can be found by their content
    steps_posted: int
    steps_done: int
    preemptions: int
    requests_finished: int


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether the engine lives and makes progress."""

    state: Literal["running", "dead", "closed"]
    live_requests: int
    steps_in_flight: int
    seconds_since_progress: float  # since a step was posted or done, or the engine was idle
    cause: str | None = None  # why it is dead
