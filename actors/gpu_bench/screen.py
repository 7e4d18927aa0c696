"""Screen: what becomes known of a card, a line each, for people or for programs."""

import json
from collections.abc import Callable, Iterable, Mapping

from .figure import LeftOut, Told
from .session import Checked, Session


class Screen:
    """Writes lines, and remembers whether something failed."""

    def __init__(self, write: Callable[[str], object], *, as_json: bool) -> None:
        self._to = write
        self._as_json = as_json
        self.has_faults = False

    def facts(self, facts: Mapping[str, object]) -> None:
        told = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "name")
        self._write({"bench": "gpu card", **facts}, f"{facts['name']}: {told}")

    def checked(self, checked: Checked | None) -> None:
        if checked is not None:
            self.has_faults |= bool(checked.faults)
            self._write(checked.line(), checked.text())

    def figures(self, told: Iterable[Told]) -> None:
        for one in told:
            self.has_faults |= isinstance(one, LeftOut) and one.is_fault
            self._write(one.line(), one.text())

    def _write(self, line: Mapping[str, object], text: str) -> None:
        self._to((json.dumps(line) if self._as_json else text) + "\n")


def examine(session: Session, screen: Screen) -> None:
    """What there is to know of a card before whole workloads are run on it."""
    screen.facts(session.facts)
    screen.figures(session.ceilings())
    screen.checked(session.check_kernels())
    screen.figures(session.card())
