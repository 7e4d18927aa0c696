"""A finding: one fact about this machine, and what to do where it stands in the way."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    text: str
    values: Mapping[str, object] = field(default_factory=dict)  # the same for programs
    remedy: str | None = None  # what to do; None where all is well
    is_fatal: bool = False  # no engine runs before it is done

    def fields(self) -> dict[str, object]:
        """The finding as one JSON object."""
        return {"text": self.text, **self.values, "remedy": self.remedy, "is_fatal": self.is_fatal}
