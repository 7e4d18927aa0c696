"""Calls of tools as models write them: where their JSON ends, and what it says. Pure."""

import json
import re
from dataclasses import dataclass
from typing import NoReturn

from .answer_formats import ARGS, CALL_ID, ToolFormat


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call: a name and a JSON object as text; the id where the model gave one."""

    name: str
    arguments: str
    call_id: str | None = None


class CallText:
    """The text of one call, or of a list of calls, while it is written."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self._format = tool_format
        self._head = ""  # before the JSON
        self._json: list[str] = []
        self._end = JsonEnd()
        self._has_ended = False
        self.is_complete = False  # the JSON has ended, and no marker is to come or none came

    @property
    def may_be_call(self) -> bool:
        """Whether this can still become a call."""
        pattern = _NAMED if self._format.names_first else _SPACE
        return pattern.fullmatch(self._head) is not None

    def add(self, text: str) -> str:
        """Take the next text and return what is left of it behind the end."""
        if not self._json:
            start = next((i for i, c in enumerate(text) if c in "{["), len(text))
            self._head, text = self._head + text[:start], text[start:]
        if not text:
            return ""
        end = 0 if self._has_ended else self._end.find(text)
        if end is None:
            self._json.append(text)
            return ""
        self._has_ended = True
        if self._format.close:  # space may stand before it
            end = len(text) - len(text[end:].lstrip())
        self._json.append(text[:end])
        self.is_complete = self._format.close is None or end < len(text)
        return text[end:]

    def add_marker(self, marker: str) -> None:
        """Take a marker that stands inside of the call."""
        if self._json:
            self.add(marker)
        else:
            self._head += marker

    def calls(self) -> list[ParsedCall] | None:
        """The calls, or None if this is not what the format says."""
        try:
            value = json.loads("".join(self._json), parse_constant=_refuse)
            head = _NAMED.fullmatch(self._head)
            if head is not None and head["name"]:
                return [_call(head["name"], value, head["id"])]
            entries = value if isinstance(value, list) else [value]
            return [_listed_call(entry) for entry in entries] or None
        except (ValueError, RecursionError):
            return None


class JsonEnd:
    """Finds where an object or a list ends, in a text that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def find(self, text: str) -> int | None:
        """Return the place behind the end, or None while it is still to come."""
        for place, character in enumerate(text):
            if self._in_string:
                self._in_string = self._is_escaped or character != '"'
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None


_SPACE = re.compile(r"\s*")
_NAMED = re.compile(
    rf"\s*(?P<name>[\w.\-/:]{{0,256}})\s*(?:{re.escape(CALL_ID)}(?P<id>\w*)\s*)?"
    rf"(?:{re.escape(ARGS)}\s*)?"
)


def _listed_call(entry: object) -> ParsedCall:
    if not isinstance(entry, dict):
        raise ValueError("a call is an object")
    arguments = entry.get("arguments", entry.get("parameters"))
    return _call(entry.get("name"), arguments, entry.get("id"))


def _call(name: object, arguments: object, call_id: object) -> ParsedCall:
    """Raises ValueError for anything that is no call."""
    if isinstance(arguments, str):  # an object that was written as text once more
        arguments = json.loads(arguments, parse_constant=_refuse)
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    name.encode()  # half of a surrogate pair is no name
    return ParsedCall(name, _dumped(arguments), call_id if isinstance(call_id, str) else None)


def _dumped(arguments: dict[str, object]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can say half of a surrogate pair, text cannot
        return json.dumps(arguments)
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
