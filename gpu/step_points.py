"""StepPoints: how long a step takes by what was measured, interpolated between the points."""

import json
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from ..messages import ConfigError

Point = tuple[float, float, float]  # (tokens computed, tokens of KV read, seconds)
Line = list[tuple[float, float]]  # (x, y), ascending in x

LEAST = {"tokens": 1.0, "kv tokens": 0.0, "seconds": 1e-9}
MOST = 1e12


class StepPoints:
    """Straight lines between measured points: first along the KV read, then along the tokens.

    Below the first point of a line its value holds; beyond the last one the last slope goes on,
    but never downwards.
    """

    def __init__(self, points: Iterable[Point]) -> None:
        lines: dict[float, Line] = {}
        for tokens, kv_tokens, seconds in sorted(points):
            lines.setdefault(tokens, []).append((kv_tokens, seconds))
        assert lines, "there is no point"
        self._tokens = list(lines)
        self._lines = list(lines.values())

    def seconds(self, num_tokens: int, num_kv_tokens: int) -> float:
        """For `num_tokens` computed positions that read `num_kv_tokens` positions of KV."""
        place = bisect_left(self._tokens, num_tokens)
        first = min(max(place - 1, 0), max(len(self._tokens) - 2, 0))
        columns = range(first, min(first + 2, len(self._tokens)))
        across = [(self._tokens[i], _along(self._lines[i], num_kv_tokens)) for i in columns]
        return _along(across, num_tokens)


def _along(line: Line, x: float) -> float:
    if x <= line[0][0] or len(line) == 1:
        return line[0][1]
    place = min(bisect_left(line, (x,)), len(line) - 1)
    (x0, y0), (x1, y1) = line[place - 1], line[place]
    rise = y1 - y0 if x <= x1 else max(y1 - y0, 0.0)
    return y1 + rise * (x - x1) / (x1 - x0)


def read_step_points(path: Path) -> StepPoints:
    """A JSON file: a list of [tokens, kv tokens, seconds]. Raises ConfigError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{path} must hold a list of [tokens, kv tokens, seconds]")
    points: dict[tuple[float, float], Point] = {}
    for number, value in enumerate(values, start=1):
        point = _checked(f"{path}, point {number}", value)
        if point[:2] in points:
            raise ConfigError(
                f"{path}, point {number}: {point[0]:g} tokens with {point[1]:g} tokens of KV "
                "were given before"
            )
        points[point[:2]] = point
    return StepPoints(points.values())


def _checked(place: str, value: object) -> Point:
    if not isinstance(value, list) or len(value) != len(LEAST):
        raise ConfigError(f"{place}: {value!r} is not [tokens, kv tokens, seconds]")
    for (name, least), entry in zip(LEAST.items(), value, strict=True):
        is_number = isinstance(entry, (int, float)) and not isinstance(entry, bool)
        if not is_number or not least <= entry <= MOST:
            raise ConfigError(
                f"{place}: {name} is {entry!r}; it must be a number of at least {least:g}"
            )
    return float(value[0]), float(value[1]), float(value[2])
