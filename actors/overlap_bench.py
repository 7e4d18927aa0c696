"""How busy a device is kept: the whole engine in real time, its callers reading every delta.

The device takes a fixed time for each step; what is measured is how long it had nothing to do
between two of them. One step in flight shows what planning ahead hides.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..gpu.device import DeviceFacts
from ..gpu.paced import PacedDevice
from ..messages import SamplingParams
from .backend import Backend
from .config import EngineConfig
from .engine import Engine
from .text.toy import ToyTokenizer

BLOCK_SIZE = 16
PROMPT = 64  # tokens of the shortest prompt; the others are up to a block longer
WARM_UP = 40  # steps


async def measure(
    running: int,
    step_s: float,
    *,
    steps_in_flight: int,
    steps: int,
    is_recorded: bool = True,
    record: Path | None = None,
) -> dict[str, Any]:
    """How long the device was idle over `steps` steps with `running` requests decoding."""
    num_tokens = WARM_UP + steps + 16
    config = EngineConfig(
        device="simulated",
        block_size=BLOCK_SIZE,
        max_num_seqs=running,
        max_num_batched_tokens=running * (PROMPT + BLOCK_SIZE),  # prefill is one step
        steps_in_flight=steps_in_flight,
        record=record,
    )
    device = PacedDevice(
        _facts(running, num_tokens), step_s, asyncio.get_running_loop().call_soon_threadsafe
    )
    backend = Backend(device, ToyTokenizer(), SamplingParams())
    async with Engine(config, backend=backend) as engine:
        if not is_recorded:
            engine.recorder.stop()
        began_s = time.process_time()
        deltas = await asyncio.gather(
            *(_read(engine, serial, num_tokens) for serial in range(running))
        )
        cpu_s = time.process_time() - began_s
        snapshots = engine.recorder.num_rotations
    gaps = np.array(device.gaps[WARM_UP : WARM_UP + steps])
    idle_s = float(gaps.sum())
    return {
        "running": running,
        "step_ms": round(step_s * 1e3, 3),
        "steps_in_flight": steps_in_flight,
        "idle_percent": round(100 * idle_s / (idle_s + len(gaps) * step_s), 2),
        "gap_us_mean": round(float(gaps.mean()) * 1e6, 1),
        "gap_us_p50": round(float(np.percentile(gaps, 50)) * 1e6, 1),
        "gap_us_p99": round(float(np.percentile(gaps, 99)) * 1e6, 1),
        "tokens_per_s": round(running / (step_s + float(gaps.mean())), 1),
        "cpu_us_per_step": round(1e6 * cpu_s / num_tokens, 1),
        "snapshots": snapshots,
        "tokens_per_delta": round(running * num_tokens / sum(deltas), 2),
    }


def _facts(running: int, num_tokens: int) -> DeviceFacts:
    max_model_len = PROMPT + BLOCK_SIZE + num_tokens
    return DeviceFacts(
        model="paced",
        device="simulated",
        dtype="none",
        vocab_size=ToyTokenizer().vocab_size,
        max_model_len=max_model_len,
        block_size=BLOCK_SIZE,
        num_blocks=running * (-(-max_model_len // BLOCK_SIZE) + 1),
        eos_token_ids=frozenset(),
    )


async def _read(engine: Engine, serial: int, num_tokens: int) -> int:
    """Read one answer to its end; returns in how many pieces it came."""
    prompt = [(serial + place) % 256 for place in range(PROMPT + serial % BLOCK_SIZE)]
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    pieces = 0
    async for _ in engine.stream(prompt, params):
        pieces += 1
    return pieces
