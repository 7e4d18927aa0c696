"""What an engine tells of itself."""

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from ..kvpool import BlockPool
from .batching import Batcher
from .streams import OutputStreams

EngineState: TypeAlias = Literal["running", "draining", "dead", "closed"]


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
    swaps: int  # how often a sequence came back from host memory
    host_blocks_total: int
    host_blocks_held: int  # by sequences that wait
    host_blocks_moved: int  # there and back
    requests_finished: int
    completion_tokens: int  # that were given to callers

    @classmethod
    def count(cls, pool: BlockPool, batcher: Batcher, streams: OutputStreams) -> Self:
        host = pool.host
        return cls(
            running=batcher.num_running,
            waiting=batcher.num_waiting,
            blocks_total=pool.num_blocks,
            blocks_held=pool.num_held,
            blocks_due=pool.num_due,
            blocks_free=pool.num_free,
            blocks_cached=pool.num_cached,
            steps_posted=batcher.steps.posted,
            steps_done=batcher.steps.done,
            preemptions=batcher.preemptions,
            swaps=batcher.swaps,
            host_blocks_total=0 if host is None else host.num_blocks,
            host_blocks_held=0 if host is None else host.num_held,
            host_blocks_moved=0 if host is None else host.blocks_moved,
            requests_finished=streams.finished,
            completion_tokens=streams.tokens,
        )


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether the engine lives and makes progress."""

    state: EngineState
    live_requests: int
    steps_in_flight: int
    seconds_since_progress: float  # since a step was posted or done, or the engine was idle
    cause: str | None = None  # why it is dead
