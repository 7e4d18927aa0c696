"""What a simulation came to, as text."""

from ..actors.simulation.measures import Occupancy, Spread
from ..actors.simulation.result import SimulationResult
from .render import table

ROWS = 16  # of the table over time, at most


def report(result: SimulationResult) -> str:
    """Three tables: the totals, the times, and how full the engine was."""
    return "\n".join((_totals(result), _times(result), _over_time(result)))


def _totals(result: SimulationResult) -> str:
    requests = f"{result.finished:,} finished of {result.requests:,}"
    for count, what in ((result.refused, "refused"), (result.shortened, "shortened")):
        requests += f", {count:,} {what}" if count else ""
    rows = [
        ("requests", requests),
        ("tokens", f"{result.prompt_tokens:,} in, {result.output_tokens:,} out"),
        ("time", f"{result.seconds:,.1f} s on {result.device}, busy {result.device_busy:.1%}"),
        ("throughput", f"{result.tokens_per_s:,.1f} tokens/s, {result.requests_per_s:,.2f} req/s"),
        ("steps", f"{result.steps:,}"),
        ("preemptions", f"{result.preemptions:,}"),
        ("swaps", f"{result.swaps:,}, {result.moved_blocks:,} blocks moved"),
        ("computed", f"{result.computed_tokens:,} tokens"),
        ("cache hits", f"{result.cache_hit_tokens:,} tokens"),
    ]
    return table(rows)


def _times(result: SimulationResult) -> str:
    rows = [
        ("first token", *_milliseconds(result.ttft_s)),
        ("between tokens", *_milliseconds(result.inter_token_s)),
        ("whole request", *_milliseconds(result.latency_s)),
    ]
    return table(rows, header=("ms", "p50", "p90", "p99", "mean"))


def _milliseconds(spread: Spread) -> tuple[str, ...]:
    values = (spread.p50, spread.p90, spread.p99, spread.mean)
    return tuple("-" if value is None else f"{value * 1e3:,.2f}" for value in values)


def _over_time(result: SimulationResult) -> str:
    rows = [
        (
            f"{span.seconds:,.3f}",
            f"{span.running:,.1f}",
            f"{span.waiting:,.1f}",
            f"{span.blocks_held:,.0f}",
            f"{span.blocks_held / result.num_blocks:.1%}",
        )
        for span in _fewer(result.occupancy)
    ]
    peaks = (result.peak_running, result.peak_waiting, result.peak_blocks_held)
    share = f"{result.peak_blocks_held / result.num_blocks:.1%}"
    rows.append(("peak", f"{peaks[0]:,}", f"{peaks[1]:,}", f"{peaks[2]:,}", share))
    header = ("from s", "running", "waiting", "blocks held", f"of {result.num_blocks:,}")
    return table(rows, header=header)


def _fewer(spans: tuple[Occupancy, ...]) -> list[Occupancy]:
    """Averages over neighbours; all spans but the last are equally long."""
    size = -(-len(spans) // ROWS)
    groups = [spans[start : start + size] for start in range(0, len(spans), size or 1)]
    return [
        Occupancy(
            group[0].seconds,
            sum(span.running for span in group) / len(group),
            sum(span.waiting for span in group) / len(group),
            sum(span.blocks_held for span in group) / len(group),
        )
        for group in groups
    ]
