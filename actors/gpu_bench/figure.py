"""Figure: a number that was measured, beside what the card could do at best."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

_HIGH_IS_BETTER = ("_per_s", "_tok_s", "_gb_s", "_tflop_s")
_UNITS = {
    "_tok_s": "tok/s",
    "_gb_s": "GB/s",
    "_tflop_s": "TFLOP/s",
    "_percent": "%",
    "_ms": "ms",
    "_us": "us",
    "_s": "s",
}
_WIDTH = 58  # of what was measured, in a line of text


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number."""

    run: str  # R1 to R8
    what: str  # what was run, and on what
    name: str  # of the number, its unit at the end
    value: float
    floor: float | None = None  # the best that is possible, in the same unit; None: not known
    about: Mapping[str, object] = field(default_factory=dict)  # further numbers and facts

    @property
    def bench(self) -> str:
        """What the measurement is called."""
        return f"gpu {self.run}, {self.what}"

    @property
    def percent_of_floor(self) -> float | None:
        """100 where nothing is lost."""
        if self.floor is None or not self.value or not self.floor:
            return None
        share = self.floor / self.value
        return 100 * (1 / share if self.name.endswith(_HIGH_IS_BETTER) else share)

    def line(self) -> dict[str, object]:
        """The figure as one JSON object."""
        fields: dict[str, object] = {"bench": self.bench, self.name: round(self.value, 4)}
        if self.floor is not None:
            fields[f"floor_{self.name}"] = round(self.floor, 4)
        if (percent := self.percent_of_floor) is not None:
            fields["of_floor_percent"] = round(percent, 1)
        return fields | dict(self.about)

    def text(self) -> str:
        """The figure as one line."""
        unit = next((said for end, said in _UNITS.items() if self.name.endswith(end)), "")
        measured = f"{_short(self.value)} {unit}".rstrip()
        line = f"{self.run}  {self.what:<{_WIDTH}}  {measured:>16}"
        if self.floor is not None:
            line += f"  at best {_short(self.floor):>8}"
        if (percent := self.percent_of_floor) is not None:
            line += f"  {percent:4.0f}%"
        told = ", ".join(f"{name} {_told(value)}" for name, value in self.about.items())
        return f"{line}  {told}".rstrip()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run that was not made."""

    run: str
    why: str
    is_fault: bool = False  # it was begun, and failed

    @classmethod
    def failed(cls, run: str, error: Exception, what: str = "") -> "LeftOut":
        """Of a run that raised this."""
        said = str(error).strip().splitlines() or [""]
        why = f"{type(error).__name__}: {said[0]}"
        return cls(run, f"{what}: {why}" if what else why, is_fault=True)

    def line(self) -> dict[str, object]:
        return {"bench": f"gpu {self.run}", "failed" if self.is_fault else "left_out": self.why}

    def text(self) -> str:
        return f"{self.run}  {'failed' if self.is_fault else 'left out'}: {self.why}"


Told: TypeAlias = Figure | LeftOut


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _told(value: object) -> str:
    return _short(value) if isinstance(value, float) else str(value)
