"""Chat templates: a model's own Jinja program, run in a sandbox. Everything it sees is plain data.

Offers what model templates are written for: `raise_exception`, `strftime_now`, `break` and
`continue`, `tojson` without HTML escapes, and `generation` blocks, which only mark their text.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from ...messages import RequestRejected
from .conversation import checked_messages, checked_tools

if TYPE_CHECKING:
    import jinja2

_END_OF_TEXT = "\ue000the text to continue ends here\ue000"


class JinjaTemplate:
    """A chat template as model files hold it; compiled when it is first used."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})  # such as `bos_token`, as text

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        options: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the conversation as the model's prompt, or raise RequestRejected.

        With `continue_final_message` it ends right after the text of the last message, whose
        trailing spaces are kept, and neither an end of turn nor a new turn follows.
        """
        checked, functions = checked_messages(messages), checked_tools(tools)
        if functions and "tools" not in self.source:
            raise RequestRejected(
                "the model's chat template does not show tools to the model; tell it of them in a "
                "message, leave out tools and give a tool_format"
            )
        names = {**self._special_tokens, **(options or {})}
        names |= {"messages": checked, "tools": functions, "documents": None}
        if not continue_final_message:
            return self._run({**names, "add_generation_prompt": add_generation_prompt})
        checked[-1]["content"] = f"{checked[-1]['content']}{_END_OF_TEXT}"
        text, mark, _ = self._run({**names, "add_generation_prompt": False}).rpartition(
            _END_OF_TEXT
        )
        if not mark:
            raise RequestRejected(
                "the chat template does not show the last message, so it cannot be continued"
            )
        return text.replace(_END_OF_TEXT, "")

    def _run(self, names: Mapping[str, object]) -> str:
        try:
            return self._compiled.render(names)
        except Exception as error:  # a template is a program: anything may go wrong in it
            raise RequestRejected(f"the model's chat template failed: {error}") from error

    @cached_property
    def _compiled(self) -> "jinja2.Template":
        from .jinja_environment import make_environment

        environment = make_environment()
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment.from_string(self.source)


class _TemplateRefused(Exception):
    """Raised when a template refuses the conversation."""


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
