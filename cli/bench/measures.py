"""From the times at which tokens came to the numbers that are reported. Pure.

`_ms`, `_s` and `_mb` are better when low, `_tok_s` and `_per_s` when high.
"""

import statistics
from collections.abc import Iterator, Sequence

from ..mistake import Mistake
from .measurement import Row
from .traces import Run, Trace
from .workload import Kind


def measure(kind: Kind, run: Run) -> Row:
    """What one run showed."""
    if kind == "stream":
        return of_stream(run)
    if kind == "interference":
        return of_interference(run.traces)
    return of_batch(run)


def of_stream(run: Run) -> Row:
    """Throughput is that of all tokens but the first, whose time is the prompt's."""
    at, tokens = run.traces[0].at, len(run.traces[0].at)
    row = {"ttft_ms": ttft(run.traces[0]) * 1e3}
    if at[-1] > at[0]:
        row["decode_tok_s"] = (tokens - 1) / (at[-1] - at[0])
    return row | {"out_tok_s": tokens / run.seconds}


def of_batch(run: Run) -> Row:
    """Throughput is that of output tokens over the whole run, prompts included."""
    firsts = [ttft(trace) * 1e3 for trace in run.traces]
    return {
        "wall_s": run.seconds,
        "out_tok_s": run.output_tokens / run.seconds,
        "ttft_median_ms": statistics.median(firsts),
        "ttft_max_ms": max(firsts),
    }


def of_interference(traces: Sequence[Trace]) -> Row:
    """The longest time between two tokens of a decoding stream, before and after the long prompt
    was sent, and that prompt's first token."""
    *streams, long = traces
    settled = max(trace.at[4] for trace in streams)  # every stream is past its own prompt
    before = [b - a for a, b in _pairs(streams) if a >= settled and b <= long.sent]
    after = [b - a for a, b in _pairs(streams) if b > long.sent]
    left = [sum(at > long.sent for at in trace.at) for trace in streams]
    if not after:
        raise Mistake("every stream had ended before the long prompt was sent; nothing to measure")
    return {
        "gap_before_median_ms": statistics.median(before) * 1e3,
        "gap_before_max_ms": max(before) * 1e3,
        "gap_after_max_ms": max(after) * 1e3,
        "long_ttft_ms": ttft(long) * 1e3,
        "short_left_at_send": min(left),
    }


def ttft(trace: Trace) -> float:
    """Seconds from sending a request to its first token."""
    return trace.at[0] - trace.sent


def _pairs(traces: Sequence[Trace]) -> Iterator[tuple[float, float]]:
    for trace in traces:
        yield from zip(trace.at, trace.at[1:], strict=False)
