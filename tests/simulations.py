"""Builders for tests of simulated traces."""

from collections.abc import Sequence

from stepahead.actors.config import EngineConfig
from stepahead.actors.simulation.result import SimulationResult
from stepahead.actors.simulation.run import Hardware, simulate
from stepahead.actors.simulation.trace import TraceRequest
from stepahead.gpu.host import NO_HOST_MEMORY, HostMemory
from stepahead.gpu.simulated import StepTime
from stepahead.gpu.timed import StepSeconds

STEP = StepTime(
    overhead_s=0.010, weight_bytes=0, kv_bytes_per_token=0, flops_per_token=1, flops_rate=1e3
)
"""A step takes 10 ms and a millisecond per token."""


def make_trace(
    count: int, *, every: float = 0.1, prompt_tokens: int = 20, output_tokens: int = 6
) -> list[TraceRequest]:
    return [TraceRequest(i * every, prompt_tokens, output_tokens) for i in range(count)]


def run(
    trace: Sequence[TraceRequest],
    *,
    step_seconds: StepSeconds = STEP,
    host_s: float = 0.0,
    memory: HostMemory = NO_HOST_MEMORY,
    **options: object,
) -> SimulationResult:
    defaults: dict[str, object] = {"block_size": 4, "num_blocks": 256, "max_num_seqs": 8}
    config = EngineConfig(device="simulated", **{**defaults, **options})  # type: ignore[arg-type]  # passed on
    hardware = Hardware(
        name="test", step_seconds=step_seconds, num_blocks=1, host_s=host_s, memory=memory
    )
    return simulate(trace, config, hardware)
