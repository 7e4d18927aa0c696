"""What xgrammar follows of JSON schemas. It passes over what it does not know, so that its answers
would be wrong: here that is refused, by name and place."""

import re
from collections.abc import Mapping
from typing import Any

from ...messages import RequestRejected
from .schema import parts_of

_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_NOTES |= {"$schema", "$id", "$comment", "$defs", "definitions"}
_OF_TYPES = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
_ALONE = {"const", "enum", "anyOf", "allOf", "$ref"}  # beside each, others are passed over
_KNOWN = _NOTES.union(*_OF_TYPES.values()) | _ALONE | {"type"}
_FORMATS = {"date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri"}


def check_subset(schema: Any) -> None:
    """Raise RequestRejected with the path of the first part that xgrammar does not follow."""
    pending: list[tuple[str, Any]] = [("#", schema)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, Mapping):
            _check_part(path, part)
            for name, value in part.items():
                pending += parts_of(f"{path}/{name}", name, value)


def _check_part(path: str, part: Mapping[str, Any]) -> None:
    says = set(part) - _NOTES
    for name in sorted(says - _KNOWN):
        raise _unfollowed(f"{path}/{name}", "this keyword")
    alone = sorted(says & _ALONE)
    if alone and (len(says) > 1 and not _is_typed_constant(part, says)):
        raise _unfollowed(path, f"{alone[0]} beside {', '.join(sorted(says - {alone[0]}))}")
    if len(part.get("allOf", [1])) != 1:
        raise _unfollowed(f"{path}/allOf", "more than one schema")
    if "pattern" in says:
        check_pattern(f"json_schema: {path}/pattern", part["pattern"])
        if says & {"minLength", "maxLength", "format"}:
            raise _unfollowed(path, "pattern beside a length or a format")
    if "format" in says and (part["format"] not in _FORMATS or says & {"minLength", "maxLength"}):
        raise _unfollowed(f"{path}/format", f"{part['format']!r:.60} here")
    _check_types(path, part, says)


def _check_types(path: str, part: Mapping[str, Any], says: set[str]) -> None:
    """Without a type, or with several, what is said of one is passed over."""
    kind = part.get("type")
    followed = _OF_TYPES.get(kind, set()) if isinstance(kind, str) else set()
    for name in sorted(says - _ALONE - {"type"} - followed):
        raise _unfollowed(f"{path}/{name}", f"{name} where type is {kind!r:.60}")


def _is_typed_constant(part: Mapping[str, Any], says: set[str]) -> bool:
    """Texts with the type of texts, as most enumerations are written."""
    if part.get("type") != "string" or not (says <= {"type", "enum"} or says <= {"type", "const"}):
        return False
    values = part.get("enum", [part.get("const")])
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def check_pattern(name: str, pattern: str) -> None:
    """Raise RequestRejected for look-around, which xgrammar passes over."""
    if re.search(r"(?<!\\)\(\?<?[=!]", pattern):
        raise RequestRejected(f"{name} is {pattern!r:.60}: xgrammar does not follow look-around")


def _unfollowed(path: str, what: str) -> RequestRejected:
    return RequestRejected(
        f"json_schema: {path}: xgrammar does not follow {what}; grammar_backend='llguidance' may"
    )
