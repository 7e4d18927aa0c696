"""Rules for single parameters: what a value must be, as it is checked and as it is told."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, Protocol, TypeAlias

from .errors import RequestRejected
from .token_bias import TokenBias

Where: TypeAlias = Literal["Intake", "Scheduler", "device", "Detokenizer"]

MAX_INT = 2**63 - 1


class Rule(Protocol):
    """What one parameter may be."""

    @property
    def right(self) -> str:
        """What it must be, in words that follow "it must be"."""
        ...

    def read(self, name: str, value: object) -> Any:
        """The value as it is kept. Raises RequestRejected where it has no meaning."""
        ...


@dataclass(frozen=True, slots=True)
class Param:
    """One row of a parameter table, beside the name, type and default that the field has."""

    rule: Rule
    meaning: str  # in one sentence, as the documentation and the command line tell it
    by: Where  # who applies it
    has_option: bool = True  # the command line offers it as it is


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    least: int
    most: int = MAX_INT
    or_none: bool = False
    hint: str = ""  # what somebody may have wanted who gave something else

    @property
    def right(self) -> str:
        text = f"a whole number of at least {self.least}"
        if self.most < MAX_INT:
            text = f"a whole number from {self.least:,} to {self.most:,}"
        return text + ", or None" * self.or_none + self.hint

    def read(self, name: str, value: object) -> int | None:
        if value is None and self.or_none:
            return None
        number = as_whole(value)
        if number is None or number < self.least:
            raise wrong(name, value, self.right)
        if number > self.most:
            raise wrong(name, value, "below 2**63" if self.most == MAX_INT else self.right)
        return number


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number; kept as a float, since an int may be larger than a message holds."""

    right: str
    least: float = 0.0
    most: float = sys.float_info.max
    is_above: bool = False  # the least itself is not allowed

    def read(self, name: str, value: object) -> float:
        number = as_number(value)
        if number is None or not self.least <= number <= self.most:
            raise wrong(name, value, self.right)
        if self.is_above and number == self.least:
            raise wrong(name, value, self.right)
        return number


@dataclass(frozen=True, slots=True)
class Flag:
    """True or False."""

    right: str = "True or False"

    def read(self, name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise wrong(name, value, self.right)
        return value


@dataclass(frozen=True, slots=True)
class Texts:
    """Some texts, none of them empty; one may be given by itself."""

    noun: str
    most: int
    most_characters: int

    @property
    def right(self) -> str:
        return (
            f"a string or a tuple of at most {self.most} strings of 1 to "
            f"{self.most_characters:,} characters"
        )

    def read(self, name: str, value: object) -> tuple[str, ...]:
        texts = (value,) if isinstance(value, str) else as_tuple(value)
        if texts is None or not all(isinstance(text, str) for text in texts):
            raise wrong(name, value, "a string or a tuple of strings")
        if "" in texts:
            raise RequestRejected(f"a {self.noun} is empty; it must hold at least one character")
        if len(texts) > self.most:
            raise RequestRejected(f"{name} has {len(texts):,} strings; it may have {self.most:,}")
        longest = max(map(len, texts), default=0)
        if longest > self.most_characters:
            raise RequestRejected(
                f"a {self.noun} has {longest:,} characters; it may have {self.most_characters:,}"
            )
        return texts


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Some token ids; whether the model has them is asked at Intake."""

    or_none: bool = False  # then none at all must be said with None

    @property
    def right(self) -> str:
        return "a tuple of token ids" + (" with at least one, or None" if self.or_none else "")

    def read(self, name: str, value: object) -> tuple[int, ...] | None:
        if value is None and self.or_none:
            return None
        token_ids = as_tuple(value)
        if token_ids is None or (self.or_none and not token_ids):
            raise wrong(name, value, self.right)
        rule = Whole(0)
        return tuple(rule.read(name, token_id) for token_id in token_ids)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Biases:
    """What is added to the logits of some token ids; minus infinity is allowed."""

    least: float
    most: float

    @property
    def right(self) -> str:
        return (
            f"a mapping from token ids to numbers from {self.least:g} to {self.most:g}, or "
            "minus infinity"
        )

    def read(self, name: str, value: object) -> TokenBias:
        if not isinstance(value, Mapping):
            raise wrong(name, value, self.right)
        biases: dict[int, float] = {}
        for key, given in value.items():
            token_id, bias = _id_of(key), as_number(given)
            if token_id is None or token_id < 0:
                raise wrong(f"a token id of {name}", key, "a whole number of at least 0")
            if bias is None or not (self.least <= bias <= self.most or bias == -math.inf):
                right = f"a number from {self.least:g} to {self.most:g}, or minus infinity"
                raise wrong(f"{name} of token {token_id}", given, right)
            biases[token_id] = bias
        return TokenBias(biases)


def _id_of(key: object) -> int | None:
    """A token id; JSON, where each name is a text, writes it as its digits."""
    if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20:
        return int(key)
    return as_whole(key)


def as_whole(value: object) -> int | None:
    """A whole number, also one of numpy's; None for anything else. True and False are none."""
    if type(value) is int:
        return value
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return int(value) if is_whole else None  # type: ignore[call-overload]  # it is one


def as_number(value: object) -> float | None:
    """A real number, also one of numpy's; None for anything else. True and False are none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number that no float holds
        return math.nan


def as_tuple(value: object) -> tuple[Any, ...] | None:
    """A list or tuple as a tuple; None for anything else."""
    is_row = isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
    return tuple(value) if is_row else None  # type: ignore[arg-type]  # a sequence


def wrong(name: str, given: object, right: str) -> RequestRejected:
    return RequestRejected(f"{name} is {shown(given)}; it must be {right}")


def shown(value: object) -> str:
    """What a caller gave, for a message of one line."""
    if isinstance(value, int) and abs(value) >= 10**100:  # too long to print, or to read
        return "a very large number"
    try:
        text = repr(value)
    except Exception:  # a caller's own type may raise anything
        text = f"a {type(value).__name__}"
    text = " ".join(text.split("\n"))
    return text if len(text) <= 100 else text[:97] + "..."
