"""Where measurements go: on the screen as tables or JSON, into a file, beside other results."""

from collections.abc import Mapping
from pathlib import Path

from ... import __version__
from ..output import write, write_json
from ..render import table
from .comparison import Line, ratio, ratios
from .measurement import Measurement
from .results import ResultFile, read_medians


class Report:
    """Shows each measurement as it comes. Files are opened at once, so mistakes in them come
    before anything is measured."""

    def __init__(
        self, *, as_json: bool, out: Path | None, compare: Path | None, args: Mapping[str, object]
    ) -> None:
        self._as_json = as_json
        self._there = read_medians(compare) if compare is not None else {}
        self._file: ResultFile | None = None
        if out is not None:
            head = {"engine": "stepahead", "version": f"stepahead {__version__}", "args": args}
            self._file = ResultFile(out, head)

    def add(self, measured: Measurement, text: str | None = None) -> None:
        """Show it, and what it is beside the other results; write it."""
        if self._file is not None:
            self._file.add_measurement(measured)
        self.show(measured.line(), text)
        self._show_ratios(list(ratios(measured, self._there)))

    def add_start(self, **seconds: float | None) -> None:
        """Seconds until the command began, for the model to load, until the first answer."""
        rounded = {name: round(value, 2) for name, value in seconds.items() if value is not None}
        if self._file is not None:
            self._file.add(rounded)
        self.show({"bench": "start", **rounded})
        there = self._there.get("start", {})
        lines = [ratio("start", n, here, there[n]) for n, here in rounded.items() if n in there]
        self._show_ratios(lines)

    def show(self, line: Line, text: str | None = None) -> None:
        """As JSON, as one line of text where there is one, else as a table."""
        if self._as_json:
            write_json(line)
        elif text is not None:
            write(f"{text}\n")
        else:
            write(table([(name, _readable(value)) for name, value in line.items()]) + "\n")

    def _show_ratios(self, lines: list[Line]) -> None:
        if self._as_json:
            for line in lines:
                write_json(line)
        elif lines:
            header = ("compared", "measure", "here", "there", "ratio", "")
            rows = [tuple(_readable(value) for value in line.values()) for line in lines]
            write(table(rows, header=header) + "\n")


def _readable(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{value['median']:g} ({value['min']:g} to {value['max']:g})"
    return f"{value:,g}" if isinstance(value, float) else str(value)
