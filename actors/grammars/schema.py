"""What is wrong with the form of a JSON schema, and where."""

from collections.abc import Mapping
from typing import Any

from ...messages import RequestRejected

_SCHEMAS = ("additionalProperties", "additionalItems", "contains", "else", "if", "items", "not")
_MORE_SCHEMAS = ("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_TABLES = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def check_schema(schema: Any) -> None:
    """Raise RequestRejected with the path of the first part that is no schema.

    The library that compiles it says what it does not support, but not where.
    """
    pending: list[tuple[str, Any]] = [("#", schema)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            raise _wrong(path, part, "a schema: an object, true or false")
        _check_type(path, part)
        for name, value in part.items():
            pending += parts_of(f"{path}/{name}", name, value)


def _check_type(path: str, part: Mapping[str, Any]) -> None:
    given = part.get("type", [])
    for kind in given if isinstance(given, list) else [given]:
        if kind not in _TYPES:
            raise _wrong(f"{path}/type", kind, f"one of {', '.join(_TYPES)}")


def parts_of(path: str, name: str, value: Any) -> list[tuple[str, Any]]:
    """The schemas inside one keyword's value."""
    if name in _TABLES:
        if not isinstance(value, Mapping):
            raise _wrong(path, value, "an object of schemas")
        return [(f"{path}/{key}", part) for key, part in value.items()]
    if name in _LISTS or (name == "items" and isinstance(value, list)):
        if not isinstance(value, list):
            raise _wrong(path, value, "a list of schemas")
        return [(f"{path}/{place}", part) for place, part in enumerate(value)]
    return [(path, value)] if name in _SCHEMAS or name in _MORE_SCHEMAS else []


def _wrong(path: str, given: Any, right: str) -> RequestRejected:
    return RequestRejected(f"json_schema: {path} is {given!r:.60}; it must be {right}")
