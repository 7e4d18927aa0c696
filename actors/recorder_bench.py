"""What recording costs: CPU time of a message that is posted and taken, recorded or not."""

import gc
import time
from typing import Any

from ..messages import Abort
from .batching import BatchLimits
from .cores import Cores, CoreSetup, build_cores
from .journal import Journal
from .recording.format import Header
from .recording.recorder import Recorder

MESSAGES = 100_000


def measure() -> dict[str, Any]:
    """Microseconds per message: posted and taken in a turn, and noted within somebody's turn."""
    gc.collect()
    gc.freeze()  # what was there before is not part of it
    plain, recorded = (_time(is_recorded=is_recorded) for is_recorded in (False, True))
    return {
        "messages": MESSAGES,
        "us_posted": round(plain[0], 2),
        "us_posted_recorded": round(recorded[0], 2),
        "us_noted": round(plain[1], 2),
        "us_noted_recorded": round(recorded[1], 2),
    }


def _time(*, is_recorded: bool) -> tuple[float, float]:
    journal = Journal(time.monotonic_ns)
    if is_recorded:
        Recorder(_HEADER, journal).watch(_cores(journal))
    message = Abort(1)
    began_s = time.process_time()
    for _ in range(MESSAGES):
        journal.begin_turn("scheduler", [journal.stamp(message)])
    between_s = time.process_time()
    for _ in range(MESSAGES):
        journal.note("scheduler", message)
    ended_s = time.process_time()
    scale = 1e6 / MESSAGES
    return (between_s - began_s) * scale, (ended_s - between_s) * scale


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
