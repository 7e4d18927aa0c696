"""A measurement: what several runs of one benchmark showed, as numbers by name."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Row: TypeAlias = Mapping[str, float]  # what one run showed
Spread: TypeAlias = Mapping[str, float]  # median, min and max over the runs
TokenIds: TypeAlias = tuple[int, ...]

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """The runs of one benchmark; every number's unit is in its name."""

    bench: str
    about: Mapping[str, object]  # what was measured, and on what
    runs: Sequence[Row]
    warm_up: Row | None = None  # the run before them, which does not count
    outputs: Sequence[Sequence[TokenIds]] = field(default=())  # by run, the warm-up first

    def summary(self) -> dict[str, Spread]:
        """The spread of everything that each of the runs showed."""
        names = [name for name in self.runs[0] if all(name in run for run in self.runs)]
        return {name: spread([run[name] for run in self.runs]) for name in names}

    def line(self) -> dict[str, object]:
        """The measurement as one JSON object."""
        return {"bench": self.bench, **self.about, "runs": len(self.runs), **self.summary()}


def spread(values: Iterable[float]) -> Spread:
    """Median and range."""
    seen = list(values)
    measures = {"median": statistics.median(seen), "min": min(seen), "max": max(seen)}
    return {name: round(value, _DIGITS) for name, value in measures.items()}
