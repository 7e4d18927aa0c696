"""Checks the messages of a chat and brings them into the one form that templates expect."""

import json
from collections.abc import Mapping, Sequence

from ...messages import RequestRejected


def checked_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return copies with a role and a text each, or raise RequestRejected naming the fault.

    Text given in parts is joined, an empty list of tool calls is left out, and tool arguments
    given as JSON text become what they stand for.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RequestRejected(f"messages is {messages!r}; it must be a list of messages")
    if not messages:
        raise RequestRejected("messages is empty; a chat needs at least one message")
    return [_checked(message, f"message {number}") for number, message in enumerate(messages, 1)]


def _checked(message: Mapping[str, object], where: str) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise RequestRejected(f"{where} is {message!r}; it must have a role and a content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestRejected(f"{where} has the role {role!r}; it must be a name such as 'user'")
    checked = {**message, "role": role}
    calls = checked.pop("tool_calls", None)
    if calls:
        checked["tool_calls"] = _checked_calls(calls, where)
    checked["content"] = _text(message.get("content"), where, may_lack=bool(calls))
    return checked


def _text(content: object, where: str, *, may_lack: bool) -> str:
    """Return the message's text; a message that calls tools may have none."""
    if isinstance(content, str):
        return content
    if content is None and may_lack:
        return ""
    if content is None:
        raise RequestRejected(f"{where} has no content; give a text, which may be empty")
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return "".join([_part_text(part, where) for part in content])
    raise RequestRejected(f"{where} has the content {content!r}; it must be a text")


def _part_text(part: object, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestRejected(f"{where} has a part that is not text; this model reads text only")
    return text


def _checked_calls(calls: object, where: str) -> list[dict[str, object]]:
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise RequestRejected(f"{where} has the tool_calls {calls!r}; it must be a list of calls")
    return [_with_arguments(call) for call in calls]


def _with_arguments(call: Mapping[str, object]) -> dict[str, object]:
    """Return the call with its arguments parsed, in the call itself or under `function`."""
    checked = dict(call)
    function = checked.get("function")
    if isinstance(function, Mapping):
        checked["function"] = _with_arguments(function)
    if "arguments" in checked:
        checked["arguments"] = _parsed(checked["arguments"])
    return checked


def _parsed(arguments: object) -> object:
    """Return the object that JSON text stands for; null is an empty one, other text stays."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except ValueError:
            return arguments
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else arguments


def checked_tools(tools: Sequence[Mapping[str, object]] | None) -> list[dict[str, object]] | None:
    """Return the functions in the form templates expect, None for none at all, or raise
    RequestRejected. A bare function is put into that form."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise RequestRejected(f"tools is {tools!r}; it must be a list of functions")
    return [_checked_tool(tool, f"tool {number}") for number, tool in enumerate(tools, 1)] or None


def _checked_tool(tool: object, where: str) -> dict[str, object]:
    if isinstance(tool, Mapping) and "function" not in tool and "name" in tool:
        tool = {"type": "function", "function": tool}
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(name, str) or not name:
        raise RequestRejected(
            f"{where} is {tool!r}; it must be a function with a name, a description and "
            "parameters as a JSON schema"
        )
    return {"type": "function", **tool}
