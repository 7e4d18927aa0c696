"""Two readings of an engine's counts, as rates, as rows and as a line. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BAR = 20  # characters


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine said, and what went on since it was asked before."""

    counts: Mapping[str, Any]
    tokens_per_s: float
    steps_per_s: float
    requests_per_s: float

    @classmethod
    def between(
        cls, before: Mapping[str, Any], now: Mapping[str, Any], seconds: float
    ) -> "Reading":
        def rate(name: str) -> float:
            return float(now[name] - before[name]) / seconds

        return cls(now, rate("completion_tokens"), rate("steps_done"), rate("requests_finished"))

    def fields(self) -> dict[str, object]:
        """For JSON."""
        rates = ("tokens_per_s", "steps_per_s", "requests_per_s")
        return {**self.counts, **{name: round(getattr(self, name), 3) for name in rates}}


def line(reading: Reading) -> str:
    """Everything that matters, in one line."""
    counts = reading.counts
    return (
        f"running {counts['running']}, waiting {counts['waiting']}, "
        f"blocks {counts['blocks_held']} of {counts['blocks_total']}, "
        f"{reading.tokens_per_s:.1f} tok/s, {reading.steps_per_s:.1f} steps/s, "
        f"lag {_ms(counts['loop_lag_s'])}"
    )


def rows(reading: Reading) -> list[tuple[str, str]]:
    """A name and what there is to say of it, each."""
    counts = reading.counts
    return [
        ("engine", f"{counts['model']} on {counts['device']}, {counts['state']}, {counts['pid']}"),
        ("batch", f"{counts['running']:,} running, {counts['steps_in_flight']} steps in flight"),
        ("queue", f"{counts['waiting']:,} waiting, {counts['preemptions']:,} preempted so far"),
        ("blocks", _blocks(counts)),
        ("cached", f"{counts['blocks_cached']:,} blocks"),
        ("speed", f"{reading.tokens_per_s:,.1f} tok/s, {reading.steps_per_s:,.1f} steps/s"),
        (
            "requests",
            f"{counts['requests_finished']:,} done, {reading.requests_per_s:,.1f}/s",
        ),
        ("lag", f"{_ms(counts['loop_lag_s'])} of the event loop, {_idle(counts)}"),
    ]


def screen(reading: Reading, columns: int) -> list[str]:
    """The rows as lines, none longer than the terminal is wide."""
    return [f"{name:<9} {text}"[:columns] for name, text in rows(reading)]


def _blocks(counts: Mapping[str, Any]) -> str:
    held, total = counts["blocks_held"], counts["blocks_total"]
    bar = "#" * -(-BAR * held // total)
    return f"[{bar:<{BAR}}] {held:,} of {total:,} held"


def _idle(counts: Mapping[str, Any]) -> str:
    return f"progress {_ms(counts['seconds_since_progress'])} ago"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
