"""A small Gantt chart in characters: what happened when, over one common time."""

from collections.abc import Sequence
from dataclasses import dataclass

from .status import seconds

MIN_COLUMNS, MAX_COLUMNS = 3, 60  # of the chart itself
REMARK_NEEDS = 24  # columns that the chart keeps beside remarks


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took its time, in seconds since the beginning."""

    name: str
    start: float
    end: float
    remark: str = ""


def gantt(bars: Sequence[Bar], total: float, *, columns: int) -> str:
    """A line for each bar: name, bar, time, and a remark where there is room for it."""
    names = max(len(bar.name) for bar in bars)
    times = [seconds(bar.end - bar.start) for bar in bars]
    longest = max(map(len, times))
    room = columns - names - longest - 3
    remarks = max(len(bar.remark) for bar in bars) + 2
    has_remarks = room - remarks >= REMARK_NEEDS
    width = min(max(room - remarks * has_remarks, MIN_COLUMNS), MAX_COLUMNS)
    lines = []
    for bar, time in zip(bars, times, strict=True):
        line = f"{bar.name:<{names}} {_drawn(bar, total, width)} {time:>{longest}}"
        lines.append((f"{line}  {bar.remark}" if has_remarks else line).rstrip())
    return "\n".join(lines)


def _drawn(bar: Bar, total: float, width: int) -> str:
    """At least one character, however short it was."""
    scale = width / total if total > 0 else 0.0
    start = min(int(bar.start * scale), width - 1)
    end = min(max(round(bar.end * scale), start + 1), width)
    return f"{' ' * start}{'#' * (end - start)}".ljust(width)
