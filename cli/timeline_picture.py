"""A picture of a timeline: the device and the slots, a bar for every step and row, as SVG."""

import zlib
from html import escape

from ..actors.story.timeline import DEVICE, WAITING, Span, Timeline
from .picture import ticks

WIDTH, LEFT, RIGHT, TOP = 960, 92, 16, 34
ROW, BAR = 24, 17
MOST_ROWS = 40
COLOURS = ("#4878a8", "#c98a3c", "#5b9a68", "#a8586b", "#7d6bb0", "#4d9aa0", "#8c8c48", "#a06a45")
INK, GRID = "#333333", "#dddddd"


def draw(timeline: Timeline) -> str:
    """Time goes to the right; a request has the same colour everywhere. Prompts are darker."""
    tracks = [track for track in timeline.tracks if track == DEVICE or track.startswith("slot ")]
    return _Picture(timeline, tracks[:MOST_ROWS]).svg()


class _Picture:
    def __init__(self, timeline: Timeline, tracks: list[str]) -> None:
        self._timeline = timeline
        self._rows = {track: row for row, track in enumerate([*tracks, WAITING])}
        self._ms = max((timeline.end_ns - timeline.begin_ns) / 1e6, 1e-6)
        self._height = TOP + ROW * len(self._rows) + 34

    def svg(self) -> str:
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" '
            f'width="{WIDTH}" height="{self._height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{self._height}" fill="white"/>',
            *self._axis(),
        ]
        for track, row in self._rows.items():
            parts.append(_text(LEFT - 8, TOP + row * ROW + 13, track, anchor="end"))
        parts += [self._bar(span) for span in self._timeline.spans if span.track in self._rows]
        return "\n".join([*parts, "</svg>", ""])

    def _axis(self) -> list[str]:
        floor = TOP + ROW * len(self._rows)
        parts = []
        for ms in (tick for tick in ticks(self._ms) if tick <= self._ms):
            x = LEFT + (WIDTH - LEFT - RIGHT) * ms / self._ms
            parts.append(f'<path d="M{x:.1f} {TOP - 6}V{floor}" stroke="{GRID}"/>')
            parts.append(_text(x, floor + 16, f"{ms:,g}", anchor="middle"))
        return [*parts, _text(WIDTH - RIGHT, floor + 30, "ms", anchor="end")]

    def _bar(self, span: Span) -> str:
        x, end = self._x(span.begin_ns), self._x(span.end_ns)
        width = max(end - x - 0.6, 0.6)
        y = TOP + self._rows[span.track] * ROW
        tokens = int(span.about.get("tokens", 1))
        colour = "#777777" if span.track == DEVICE else _colour(span.name)
        opacity = 0.3 if span.track == WAITING else 0.95 if tokens > 1 else 0.6
        label = f"{span.name}: {', '.join(f'{k} {v}' for k, v in span.about.items())}"
        bar = (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}" '
            f'opacity="{opacity}"><title>{escape(label)}</title></rect>'
        )
        text = span.name.removeprefix("step ")
        if width > 6.5 * len(text) + 4:
            bar += _text(x + width / 2, y + 12.5, text, anchor="middle", colour="white")
        return bar

    def _x(self, t_ns: int) -> float:
        share = (t_ns - self._timeline.begin_ns) / 1e6 / self._ms
        return LEFT + (WIDTH - LEFT - RIGHT) * share


def _colour(name: str) -> str:
    return COLOURS[zlib.crc32(name.encode(errors="replace")) % len(COLOURS)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
