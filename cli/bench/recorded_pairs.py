"""What recording costs in throughput: runs of an engine in each way, in turn, compared run by run.

A machine on which others work is as fast as they leave it, so only what ran one after another is
compared; and who is first changes, because what is slow at first must not always be the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NOT_RECORDED, RECORDED, INTO_FILE = "not recorded", "recorded", "recorded into a file"
WAYS = (NOT_RECORDED, RECORDED, INTO_FILE)


class RecordedPairs:
    """Collects what the runs show, by the way in which they were recorded."""

    def __init__(self) -> None:
        self.lines: Mapping[str, list[dict[str, Any]]] = {way: [] for way in WAYS}

    def order(self, place: int) -> Sequence[str]:
        """The ways in which to run next."""
        first = place % len(WAYS)
        return (*WAYS[first:], *WAYS[:first])

    def add(self, way: str, line: dict[str, Any]) -> None:
        self.lines[way].append(line)

    def costs(self) -> list[dict[str, Any]]:
        """Percent of the throughput of the run beside it that was not recorded; less than none
        where the recorded run was the faster one."""
        return list(self._costs())

    def _costs(self) -> Iterator[dict[str, Any]]:
        for plain, recorded, filed in zip(*self.lines.values(), strict=True):
            yield {
                "running": plain["running"],
                "step_ms": plain["step_ms"],
                "cost_percent": _cost(plain, recorded),
                "cost_into_file_percent": _cost(plain, filed),
            }


def _cost(plain: Mapping[str, float], recorded: Mapping[str, float]) -> float:
    return round(100 * (1 - recorded["tokens_per_s"] / plain["tokens_per_s"]), 2)
