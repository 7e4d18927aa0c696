"""How answers are sampled: the model's recommendation, the options, and what was /set since."""

import json
from dataclasses import dataclass, field, replace

from ...messages import RequestRejected, SamplingParams
from ...messages.params import PARAMETERS
from ..sampling_options import SamplingOptions

NAMES = tuple(PARAMETERS)
DEFAULT = "default"


@dataclass(slots=True)
class Settings:
    """What the user said about sampling; later words stand before earlier ones."""

    options: SamplingOptions
    chosen: dict[str, object] = field(default_factory=dict)  # by /set, as JSON has it

    def params(self, recommended: SamplingParams) -> SamplingParams:
        """Raises RequestRejected where values do not go together."""
        params = replace(self.options.params(recommended), **self.chosen)  # type: ignore[arg-type]
        if params.n > 1:
            raise RequestRejected("a chat has one answer at a time; `generate --n` gives several")
        return params

    def choose(self, name: str, text: str, recommended: SamplingParams) -> None:
        """Set a value from its text, or with `default` take it back; one that cannot be is refused
        and changes nothing. Raises RequestRejected."""
        others = {key: value for key, value in self.chosen.items() if key != name}
        self.restore(others if text == DEFAULT else {**others, name: _value(text)}, recommended)

    def restore(self, chosen: dict[str, object], recommended: SamplingParams) -> None:
        """Choose this and nothing else. Raises RequestRejected."""
        SamplingParams.from_dict(chosen)
        Settings(self.options, chosen).params(recommended)
        self.chosen = chosen


def _value(text: str) -> object:
    """A number, true, false, none or a JSON list; anything else is a text."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
