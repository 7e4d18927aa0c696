"""A picture of a simulation: how full the engine was over time, as SVG."""

import math
from collections.abc import Sequence
from html import escape

from ..actors.simulation.result import SimulationResult

WIDTH, HEIGHT = 860, 560
LEFT, RIGHT, TOP, BOTTOM, GAP = 76, 20, 48, 40, 34
INK, GRID = "#333333", "#dddddd"


def draw(result: SimulationResult) -> str:
    """Running and waiting sequences and blocks held, one panel each over the same time."""
    spans = result.occupancy
    times = [span.seconds for span in spans]
    panels = (
        ("running sequences", "#1f6fb2", [span.running for span in spans]),
        ("waiting sequences", "#c2571a", [span.waiting for span in spans]),
        (f"blocks held, of {result.num_blocks:,}", "#3a7d44", [s.blocks_held for s in spans]),
    )
    height = (HEIGHT - TOP - BOTTOM - GAP * (len(panels) - 1)) / len(panels)
    title = (
        f"{result.finished:,} requests on {result.device}: "
        f"{result.tokens_per_s:,.0f} tokens/s, {result.preemptions:,} preemptions"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, title, size=15),
    ]
    for number, (name, colour, values) in enumerate(panels):
        top = TOP + number * (height + GAP)
        parts += _panel(name, colour, times, values, end=result.seconds, top=top, height=height)
    parts += _time_axis(result.seconds)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    name: str,
    colour: str,
    times: Sequence[float],
    values: Sequence[float],
    *,
    end: float,
    top: float,
    height: float,
) -> list[str]:
    """A line in steps, for each value is the average until the next time."""
    marks = ticks(max(values, default=0.0))
    floor = top + height
    parts = [_text(LEFT, top - 6, name, colour=colour)]
    for tick in marks:
        y = floor - height * tick / marks[-1]
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick:,g}", anchor="end"))
    path = f"M{LEFT} {floor:.1f}"
    for time, value in zip(times, values, strict=True):
        path += f"H{_x(time, end):.1f}V{floor - height * value / marks[-1]:.1f}"
    path += f"H{_x(end, end):.1f}"
    parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return parts


def _time_axis(end: float) -> list[str]:
    y = HEIGHT - BOTTOM + 18
    marks = [tick for tick in ticks(end) if tick <= end]
    labels = [_text(_x(tick, end), y, f"{tick:,g}", anchor="middle") for tick in marks]
    return [*labels, _text(WIDTH - RIGHT, y + 16, "seconds", anchor="end")]


def _x(time: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (time / end if end else 0.0)


def ticks(most: float) -> list[float]:
    """From 0 to at least `most`, in steps of 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= most / 4.001)
    return [round(step * n, 12) for n in range(math.ceil(most / step - 1e-9) + 1)]


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
