"""How models mark the parts of an answer, and which way a model's chat template is written for.

`think`: `<think>…</think>` around the reasoning. `hermes`: `<tool_call>{…}</tool_call>`, as Hermes
and Qwen write. `llama3_json`: `{"name": …, "parameters": …}` as the whole answer, with or without
`<|python_tag|>` before it. `mistral`: `[TOOL_CALLS][{…}, …]`, or `[TOOL_CALLS]name[ARGS]{…}`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

THINK = "think"
REASONING_FORMATS = (THINK,)
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

CALL_ID, ARGS = "[CALL_ID]", "[ARGS]"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls of tools are marked."""

    open: str
    close: str | None = None  # None: a call ends with its JSON
    inner: tuple[str, ...] = ()  # markers between the name and the arguments
    names_first: bool = False  # the name may stand before the arguments instead of in the JSON
    may_be_bare: bool = False  # an answer that begins with an object may be a call, too

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, *([self.close] if self.close else []), *self.inner)


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat("<tool_call>", "</tool_call>"),
    "llama3_json": ToolFormat("<|python_tag|>", may_be_bare=True),
    "mistral": ToolFormat("[TOOL_CALLS]", inner=(CALL_ID, ARGS), names_first=True),
}

_OTHER_CALLS = ("<function=", "<arg_key>")
"""What templates say whose `<tool_call>` does not hold JSON."""


def reasoning_format_of(template: str, added_tokens: Mapping[str, int]) -> str | None:
    """The format a model reasons in, as far as its template or its vocabulary tells."""
    has_tokens = THINK_OPEN in added_tokens and THINK_CLOSE in added_tokens
    return THINK if has_tokens or THINK_CLOSE in template else None


def tool_format_of(template: str) -> str | None:
    """The format a model calls tools in, as far as its template tells."""
    if "<tool_call>" in template:
        return None if any(mark in template for mark in _OTHER_CALLS) else "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    is_llama = "<|python_tag|>" in template or "<|start_header_id|>" in template
    return "llama3_json" if is_llama and '"parameters"' in template else None


def begun_in(prompt: str, continued: str = "") -> str:
    """What the prompt has the model say already: the message it is to go on with, `continued`, and
    a marker that the template opened the reasoning with."""
    is_open = prompt.removesuffix(continued).rstrip().endswith(THINK_OPEN)
    return (THINK_OPEN if is_open else "") + continued
