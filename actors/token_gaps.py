"""Gaps between the tokens of one request, kept in few bytes until it is over. Pure."""

from array import array
from collections.abc import Sequence


class TokenGaps:
    """Nanoseconds between each token and the one before it."""

    def __init__(self) -> None:
        self._gaps_ns = array("q")
        self._last_ns: int | None = None

    def add(self, times_ns: Sequence[int]) -> None:
        """Tokens have arrived at these times."""
        last_ns = self._last_ns
        for time_ns in times_ns:
            if last_ns is not None:
                self._gaps_ns.append(time_ns - last_ns)
            last_ns = time_ns
        self._last_ns = last_ns

    def percentile_s(self, *percents: int) -> list[float | None]:
        """Seconds that so many per cent of the gaps do not exceed; None without a gap."""
        ordered = sorted(self._gaps_ns)
        count = len(ordered)
        if not count:
            return [None] * len(percents)
        return [ordered[max(-(-count * percent // 100) - 1, 0)] / 1e9 for percent in percents]
