"""Results in a file: written after every measurement, read again to compare.

The form is one that scripts for other engines write, too: what is common to all (`engine`,
`version`, `args`, `first_answer_s`), then by benchmark `runs`, `warm_up` and for every number its
median and range, and under `outputs` the token ids of each run and request, the warm-up first.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from ..mistake import Mistake
from .measurement import Measurement
from .workload_file import read_object


class ResultFile:
    """Grows with every measurement, so that what comes later loses nothing."""

    def __init__(self, path: Path, head: Mapping[str, object]) -> None:
        self._path = path
        self._fields: dict[str, object] = dict(head)
        self._outputs: dict[str, object] = {}
        self.add({})

    def add(self, more: Mapping[str, object]) -> None:
        """Facts that were found out meanwhile."""
        self._fields |= more
        text = json.dumps({**self._fields, "outputs": self._outputs})
        try:
            self._path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Mistake(f"no results to {str(self._path)!r} ({error.strerror})") from error

    def add_measurement(self, measured: Measurement) -> None:
        if measured.outputs:
            self._outputs[measured.bench] = measured.outputs
        self.add(
            {
                measured.bench: {
                    **measured.about,
                    "runs": measured.runs,
                    "warm_up": measured.warm_up,
                    **measured.summary(),
                }
            }
        )


def read_medians(path: Path) -> dict[str, dict[str, float]]:
    """By benchmark and by number the median. Raises a Mistake for a file that has none."""
    fields = read_object(path, "results")
    medians = {name: found for name, value in fields.items() if (found := _medians(value))}
    if not medians:
        raise Mistake(f"{path} has no results: no benchmark in it has a median")
    first = fields.get("first_answer_s")
    if isinstance(first, (int, float)):
        medians["start"] = {"first_answer_s": first}
    return medians


def _medians(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    spreads = {name: spread for name, spread in value.items() if _is_spread(spread)}
    return {str(name): float(spread["median"]) for name, spread in spreads.items()}


def _is_spread(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("median"), (int, float))
