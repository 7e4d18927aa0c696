"""What an answer must look like, where a request says so."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from .errors import RequestRejected
from .param_rules import wrong

MAX_CHARACTERS = 262_144
MAX_CHOICES = 10_000


class StructureKind(StrEnum):
    """How the text of a structure is meant."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What an answer must look like: make one with the method that is named like its kind.

    Raises RequestRejected for what no engine could follow. Whether the grammar can be compiled
    shows when the request is submitted.
    """

    kind: StructureKind
    text: str  # the schema or the choices as JSON, the expression, or the grammar

    def __post_init__(self) -> None:
        if len(self.text) > MAX_CHARACTERS:
            raise RequestRejected(
                f"structured_output has a {self.kind} of {len(self.text):,} characters; "
                f"it may have {MAX_CHARACTERS:,}"
            )

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> Self:
        """JSON that the schema allows: a schema, or the text of one. Objects have the schema's
        properties in the order in which it names them."""
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise _wrong("json_schema is not JSON", error) from error
        if not isinstance(schema, (Mapping, bool)):
            raise RequestRejected(
                f"json_schema is a {type(schema).__name__}; it must be a schema: an object, "
                "True or False"
            )
        return cls(StructureKind.JSON_SCHEMA, _json(schema))

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object."""
        return cls(StructureKind.JSON_OBJECT, "")

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """A text that the whole expression matches."""
        return cls(StructureKind.REGEX, _text("regex", pattern))

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Self:
        """One of these texts."""
        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise RequestRejected(f"choice is {choices!r}; it must be a list of texts")
        if not 0 < len(choices) <= MAX_CHOICES:
            raise RequestRejected(
                f"choice has {len(choices):,} texts; it must have 1 to {MAX_CHOICES:,}"
            )
        return cls(StructureKind.CHOICE, _json([_text("choice", text) for text in choices]))

    @classmethod
    def grammar(cls, lark: str) -> Self:
        """A text of this context-free grammar, in Lark's notation as llguidance reads it."""
        return cls(StructureKind.GRAMMAR, _text("grammar", lark))

    @property
    def choices(self) -> list[str]:
        """The texts of a choice."""
        choices: list[str] = json.loads(self.text)
        return choices

    @property
    def as_json(self) -> dict[str, Any]:
        """What a parameter's JSON would say, such as `{"regex": "a+"}`."""
        match self.kind:
            case StructureKind.JSON_OBJECT:
                return {self.kind: True}
            case StructureKind.JSON_SCHEMA | StructureKind.CHOICE:
                return {self.kind: json.loads(self.text)}
            case _:
                return {self.kind: self.text}

    @property
    def key(self) -> str:
        """Kind and text as one text, which tells structures apart."""
        return f"{self.kind}\n{self.text}"

    @classmethod
    def of_key(cls, key: str) -> Self:
        """The structure that has this key."""
        kind, _, text = key.partition("\n")
        return cls(StructureKind(kind), text)


_OF_JSON = {
    StructureKind.JSON_SCHEMA: StructuredOutput.json_schema,
    StructureKind.REGEX: StructuredOutput.regex,
    StructureKind.CHOICE: StructuredOutput.choice,
    StructureKind.GRAMMAR: StructuredOutput.grammar,
}


@dataclass(frozen=True, slots=True)
class Structure:
    """The rule of a parameter: a structure, or what says one in JSON, such as `{"regex": "a+"}`."""

    right: str = (
        "None, StructuredOutput, or an object with one of "
        + ", ".join(StructureKind)
        + " and its value"
    )

    def read(self, name: str, value: object) -> StructuredOutput | None:
        if value is None or isinstance(value, StructuredOutput):
            return value
        if isinstance(value, Mapping) and len(value) == 1:
            ((kind, given),) = value.items()
            if kind == StructureKind.JSON_OBJECT and given is True:
                return StructuredOutput.json_object()
            if kind in _OF_JSON:
                return _OF_JSON[kind](given)
        raise wrong(name, value, self.right)


def _text(kind: str, text: object) -> str:
    if not isinstance(text, str) or not text:
        raise RequestRejected(f"{kind} is {text!r:.60}; it must be a text that is not empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _wrong(f"{kind} is not a text that UTF-8 can hold", error) from error
    return text


def _json(value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong("structured_output is not JSON", error) from error
    return text


def _wrong(what: str, error: Exception) -> RequestRejected:
    return RequestRejected(f"{what}: {error}")
