"""What recording costs: CPU time of a message that is posted and taken, recorded or not, of the
snapshot that opens a segment, and of whole steps of the control plane."""

import gc
import statistics
import time
from collections import deque
from typing import Any

import numpy as np

from .batching import BatchLimits
from .control_plane_bench import ControlPlane
from .cores import Cores, CoreSetup, build_cores
from .journal import Journal
from .recording.format import Header
from .recording.recorder import Recorder
from .recording.snapshot import Snapshot

BLOCK, BLOCKS = 256, 400  # messages that are timed at once; so often
STEPS, SNAPSHOTS = 200, 25


def measure() -> dict[str, Any]:
    """Microseconds per message: posted and taken in a turn, and noted within somebody's turn.

    The ring is full, so that every segment that is opened lets one go. What is compared takes
    turns, so that whatever else the machine does hits all of it.
    """
    messages = _messages_of_steps()
    plain, recorded = Journal(time.monotonic_ns), Journal(time.monotonic_ns)
    recorder = Recorder(_HEADER, recorded)
    recorder.watch(_cores(recorded))
    while not recorder.is_dropping:
        _noted(recorded, messages)
    gc.collect()
    gc.freeze()  # what was there before is not part of it
    ways = (("posted", _posted), ("noted", _noted))
    times = [
        [say(plain, messages), say(recorded, messages)] for _ in range(BLOCKS) for _, say in ways
    ]
    found: dict[str, Any] = {"messages": BLOCK * BLOCKS}
    for place, (name, _) in enumerate(ways):
        us_plain, us_recorded = np.sum(times[place :: len(ways)], axis=0) / (BLOCK * BLOCKS) / 1e3
        found[f"us_{name}"] = round(float(us_plain), 2)
        found[f"us_{name}_recorded"] = round(float(us_recorded), 2)
    return found


def measure_snapshots(running: int) -> dict[str, Any]:
    """CPU milliseconds of a snapshot between two steps of `running` sequences that decode."""
    plane = ControlPlane(running, num_tokens=STEPS + SNAPSHOTS)
    plane.prefill()
    for _ in range(STEPS):
        plane.step()
    gc.collect()
    gc.freeze()
    kept: deque[Snapshot] = deque(maxlen=4)  # as many as a ring has
    times: list[float] = []
    for _ in range(SNAPSHOTS):
        began_s = time.thread_time()
        kept.append(Snapshot(plane.cores))
        times.append(1e3 * (time.thread_time() - began_s))
        plane.step()
    return {
        "running": running,
        "blocks": plane.cores.pool.num_blocks,
        "ms_snapshot": round(statistics.median(times), 2),
        "ms_worst": round(max(times), 2),
    }


def measure_steps(running: int, step_s: float, steps: int) -> dict[str, Any]:
    """CPU microseconds of a step with `running` sequences that decode, recorded or not, snapshots
    included; and what recording adds, as a share of steps of `step_s` on a device.

    Two control planes take their steps in turn, so that whatever else the machine does hits both.
    """
    plain, recorded = (ControlPlane(running, num_tokens=steps + 64) for _ in range(2))
    header = Header(setup=recorded.setup, model="none", device="none")
    recorder = Recorder(header, recorded.cores.journal)
    recorder.watch(recorded.cores)
    for plane in (plain, recorded):
        plane.prefill()
    gc.collect()
    gc.freeze()
    times = np.array([(plain.step(), recorded.step()) for _ in range(steps)]) / 1e3
    us_plain, us_recorded = times.mean(axis=0).tolist()
    more = us_recorded - us_plain
    return {
        "running": running,
        "step_ms": round(step_s * 1e3, 3),
        "us_per_step": round(us_plain, 1),
        "us_per_step_recorded": round(us_recorded, 1),
        "percent_of_step": round(more / step_s / 1e4, 2),
        "snapshots": recorder.num_rotations,
    }


def _messages_of_steps() -> list[Any]:
    """As many as are timed at once, as an engine says them."""
    plane = ControlPlane(8, num_tokens=BLOCK)
    messages: list[Any] = []
    plane.cores.journal.attach(
        lambda _, turn: messages.extend(envelope.message for envelope in turn.envelopes)
    )
    plane.prefill()
    while len(messages) < BLOCK:
        plane.step()
    return messages[:BLOCK]


def _posted(journal: Journal, messages: list[Any]) -> int:
    """CPU nanoseconds of messages that are posted, and taken one by one."""
    began_ns = time.thread_time_ns()
    for message in messages:
        journal.begin_turn("scheduler", [journal.stamp(message)])
    return time.thread_time_ns() - began_ns


def _noted(journal: Journal, messages: list[Any]) -> int:
    """CPU nanoseconds of messages in one turn, of which the first is posted."""
    first, *others = messages
    began_ns = time.thread_time_ns()
    journal.begin_turn("scheduler", [journal.stamp(first)])
    for message in others:
        journal.note("executor", message)
    return time.thread_time_ns() - began_ns


def _cores(journal: Journal) -> Cores:
    def refuse(_: object) -> None:
        raise AssertionError("nothing runs here")

    return build_cores(
        CoreSetup(limits=_LIMITS, watermark=0),
        journal,
        executor=refuse,
        detokenizer=refuse,
        call_at=lambda _t_ns, _call: refuse(None),  # type: ignore[arg-type,return-value]
    )


_LIMITS = BatchLimits(
    block_size=16,
    num_blocks=1,
    max_model_len=16,
    max_num_seqs=1,
    max_num_batched_tokens=16,
    long_prefill_token_threshold=None,
    steps_in_flight=1,
    prefix_caching=False,
)
_HEADER = Header(setup=CoreSetup(limits=_LIMITS, watermark=0), model="none", device="none")
