"""What the control plane costs: Scheduler, KVPool, plans and results, without a model or text.

Steady decode on the null device: `running` sequences whose prompts of 512 to 527 tokens spread
their block edges evenly, with prefix caching on and two steps in flight. CPU time of whole
Scheduler turns: apply a result, settle blocks, publish, plan, post, report.
"""

import gc
import time
from typing import Any

import numpy as np

from ..gpu.device import DeviceFacts
from ..gpu.null import NullDevice
from ..messages import (
    Generate,
    LoadWeights,
    SamplingParams,
    StepDone,
    StepFailed,
    StepPlan,
    seal,
)
from .batching import BatchLimits
from .cores import CoreSetup, build_cores
from .journal import Journal

PROMPT = 512  # tokens of the shortest prompt
BLOCK_SIZE = 16
WARM_UP = 32  # steps


def measure(running: int, steps: int = 256) -> dict[str, Any]:
    """CPU microseconds per step of steady decode with `running` sequences."""
    plane = ControlPlane(running, num_tokens=WARM_UP + steps + 64)
    plane.prefill()
    for _ in range(WARM_UP):
        plane.step()
    gc.collect()
    times = np.array([plane.step() for _ in range(steps)]) / 1e3
    mean = float(times.mean())
    return {
        "running": running,
        "us_per_step": round(mean, 1),
        "p50": round(float(np.percentile(times, 50)), 1),
        "p99": round(float(np.percentile(times, 99)), 1),
        "us_per_sequence": round(mean / running, 3),
    }


class ControlPlane:
    """The real actors of the control plane, with their turns called one by one. What they say to
    Executor and Detokenizer is numbered like every message, and not part of the measurement."""

    def __init__(self, running: int, num_tokens: int) -> None:
        self._running = running
        self._max_model_len = max_model_len = PROMPT + BLOCK_SIZE + num_tokens
        blocks_per_sequence = -(-max_model_len // BLOCK_SIZE) + 1
        facts = DeviceFacts(
            model="null",
            device="simulated",
            dtype="none",
            vocab_size=1_000,
            max_model_len=max_model_len,
            block_size=BLOCK_SIZE,
            num_blocks=blocks_per_sequence * running,
            eos_token_ids=frozenset(),
        )
        limits = BatchLimits(
            block_size=BLOCK_SIZE,
            num_blocks=facts.num_blocks,
            max_model_len=max_model_len,
            max_num_seqs=running,
            max_num_batched_tokens=running * (PROMPT + BLOCK_SIZE),  # prefill is one step
            long_prefill_token_threshold=None,
            steps_in_flight=2,
            prefix_caching=True,
        )
        device = NullDevice(facts, limits.num_slots)

        journal = Journal(time.perf_counter_ns)

        def launch(plan: StepPlan | LoadWeights) -> None:
            assert isinstance(plan, StepPlan)
            journal.note("executor", plan)
            device.launch(plan, self._results.append)

        self.setup = CoreSetup(limits=limits, watermark=0)
        self.cores = build_cores(
            self.setup,
            journal,
            executor=launch,
            detokenizer=lambda report: journal.note("detokenizer", report),
            call_at=_no_timer,
        )
        self._results: list[StepDone | StepFailed] = []

    def prefill(self) -> None:
        """Bring every sequence to decode."""
        rng = np.random.default_rng(0)
        for serial in range(self._running):
            prompt = rng.integers(1, 1_000, PROMPT + serial % BLOCK_SIZE).astype(np.int32)
            seal(prompt)
            self.cores.to_scheduler.post(self._request(serial, prompt))
        self._turn()
        while self.cores.batcher.num_waiting:
            self.step()

    def _request(self, serial: int, prompt: Any) -> Generate:
        max_tokens = self._max_model_len - len(prompt)
        return Generate(
            serial=serial,
            request_id=f"r{serial}",
            prompt=prompt,
            params=SamplingParams(max_tokens=max_tokens),
            seed=0,
            max_tokens=max_tokens,
            stop_token_ids=(2,),
            priority=0,
            deadline_ns=None,
            queue_deadline_ns=None,
            cache_salt=b"",
        )

    def step(self) -> int:
        """One Scheduler turn for the oldest result; returns its CPU time in nanoseconds."""
        result = self._results.pop(0)
        start = time.thread_time_ns()
        self.cores.to_scheduler.post(result)
        self._turn()
        return time.thread_time_ns() - start

    def _turn(self) -> None:
        turn = self.cores.to_scheduler.drain()
        assert turn is not None
        self.cores.scheduler.react(turn)


def _no_timer(t_ns: int, call: Any) -> Any:
    raise AssertionError("no request has a deadline")
