"""How one request is sampled and when it stops."""

import sys
from dataclasses import dataclass

from .errors import RequestRejected

MAX_INT = 2**63 - 1
MAX_STOPS = 64  # each is looked for in every piece of the answer, beside everybody's steps
MAX_STOP_CHARACTERS = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops; the defaults are literal.

    Raises RequestRejected when a value has no meaning, whatever the model.
    """

    max_tokens: int | None = None  # None: up to the context
    min_tokens: int = 0  # EOS and stop ids cannot be sampled before that many tokens
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # keep the k likeliest tokens; 0 keeps all
    top_p: float = 1.0  # keep the likeliest tokens that reach this probability; 1 keeps all
    min_p: float = 0.0  # drop tokens less likely than this times the likeliest; 0 drops none
    seed: int | None = None  # None draws a fresh one per request
    stop: tuple[str, ...] = ()  # a text that ends the answer
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._freeze_sequences()
        self._check_lengths()
        self._check_distribution()
        self._check_stops()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "True or False")

    def _freeze_sequences(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif isinstance(self.stop, list):
            object.__setattr__(self, "stop", tuple(self.stop))
        if isinstance(self.stop_token_ids, list):
            object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            _require_int("max_tokens", self.max_tokens, least=1)
        _require_int("min_tokens", self.min_tokens, least=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestRejected(
                f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}"
            )

    def _check_distribution(self) -> None:
        _require_number("temperature", self.temperature, "a finite number of at least 0")
        if self.temperature < 0:
            raise _wrong("temperature", self.temperature, "a finite number of at least 0")
        _require_int("top_k", self.top_k, least=0)
        _require_number("top_p", self.top_p, "above 0 and at most 1")
        if not 0 < self.top_p <= 1:
            raise _wrong("top_p", self.top_p, "above 0 and at most 1")
        _require_number("min_p", self.min_p, "from 0 to 1")
        if not 0 <= self.min_p <= 1:
            raise _wrong("min_p", self.min_p, "from 0 to 1")
        for name in ("temperature", "top_p", "min_p"):  # an int may be larger than a message holds
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.seed is not None:
            _require_int("seed", self.seed, least=0)

    def _check_stops(self) -> None:
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) for s in self.stop):
            raise _wrong("stop", self.stop, "a string or a tuple of strings")
        if "" in self.stop:
            raise RequestRejected("a stop string is empty; it must hold at least one character")
        if len(self.stop) > MAX_STOPS:
            raise RequestRejected(f"stop has {len(self.stop):,} strings; it may have {MAX_STOPS}")
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_CHARACTERS:
            raise RequestRejected(
                f"a stop string has {longest:,} characters; it may have {MAX_STOP_CHARACTERS:,}"
            )
        if not isinstance(self.stop_token_ids, tuple):
            raise _wrong("stop_token_ids", self.stop_token_ids, "a tuple of token ids")
        for token_id in self.stop_token_ids:
            _require_int("stop_token_ids", token_id, least=0)


def _wrong(name: str, given: object, right: str) -> RequestRejected:
    return RequestRejected(f"{name} is {given!r}; it must be {right}")


def _require_int(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(name, value, f"a whole number of at least {least}")
    if value > MAX_INT:
        raise _wrong(name, value, "below 2**63")


def _require_number(name: str, value: object, right: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:  # type: ignore[arg-type]  # a number
        raise _wrong(name, value, right)
