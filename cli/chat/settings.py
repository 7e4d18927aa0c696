"""How answers are sampled: the model's recommendation, the options, and what was /set since."""

import json
from dataclasses import dataclass, field, fields, replace

from ...messages import RequestRejected, SamplingParams
from ..sampling_options import SamplingOptions

NAMES = tuple(field.name for field in fields(SamplingParams))
DEFAULT = "default"


@dataclass(slots=True)
class Settings:
    """What the user said about sampling; later words stand before earlier ones."""

    options: SamplingOptions
    chosen: dict[str, object] = field(default_factory=dict)  # by /set

    def params(self, recommended: SamplingParams) -> SamplingParams:
        """Raises RequestRejected where values do not go together."""
        return replace(self.options.params(recommended), **self.chosen)  # type: ignore[arg-type]

    def choose(self, name: str, text: str, recommended: SamplingParams) -> None:
        """Set a value from its text, or with `default` take it back; one that cannot be is refused
        and changes nothing. Raises RequestRejected."""
        if name not in NAMES:
            raise RequestRejected(f"there is no setting {name!r}; there are {', '.join(NAMES)}")
        before = dict(self.chosen)
        if text == DEFAULT:
            self.chosen.pop(name, None)
        else:
            self.chosen[name] = _value(text)
        try:
            self.params(recommended)
        except RequestRejected:
            self.chosen = before
            raise

    def restore(self, chosen: dict[str, object], recommended: SamplingParams) -> None:
        """Take over what was chosen in another chat. Raises RequestRejected."""
        unknown = [name for name in chosen if name not in NAMES]
        if unknown:
            raise RequestRejected(f"there is no setting {unknown[0]!r}")
        Settings(self.options, chosen).params(recommended)
        self.chosen = dict(chosen)


def _value(text: str) -> object:
    """A number, true, false, none or a JSON list; anything else is a text."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
