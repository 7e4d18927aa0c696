"""A small Gantt chart in characters: what happened when, over one common time."""

from collections.abc import Sequence
from dataclasses import dataclass

from .status import seconds

MIN_COLUMNS, MAX_COLUMNS = 8, 60  # of the chart itself


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took its time, in seconds since the beginning."""

    name: str
    start: float
    end: float
    remark: str = ""


def gantt(bars: Sequence[Bar], total: float, *, columns: int) -> str:
    """A line for each bar: name, bar, time. At 20 columns, too, if without remarks."""
    names = max(len(bar.name) for bar in bars)
    times = [seconds(bar.end - bar.start) for bar in bars]
    width = columns - names - max(map(len, times)) - 3
    width = min(max(width, MIN_COLUMNS), MAX_COLUMNS)
    lines = []
    for bar, time in zip(bars, times, strict=True):
        line = f"{bar.name:<{names}} {_drawn(bar, total, width)} {time}"
        if bar.remark and len(line) + len(bar.remark) + 2 < columns:
            line += f"  {bar.remark}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _drawn(bar: Bar, total: float, width: int) -> str:
    """At least one character, however short it was."""
    scale = width / total if total > 0 else 0.0
    start = min(int(bar.start * scale), width - 1)
    end = min(max(round(bar.end * scale), start + 1), width)
    return f"{' ' * start}{'#' * (end - start)}".ljust(width)
