"""The prompt: where messages and commands are typed."""

import sys
from collections.abc import Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session, get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.utils import is_dumb_terminal

from ..mistake import Interrupted
from .commands import COMMANDS
from .history import BoundedHistory, history_file
from .slash import is_open

PROMPT = ">>> "


def prompt_session() -> PromptSession[str]:
    """On this process's terminal; one without cursor movements gets plain text."""
    with create_app_session(output=PlainTextOutput(sys.stdout) if is_dumb_terminal() else None):
        return PromptSession(
            PROMPT,
            history=BoundedHistory(history_file()),
            key_bindings=_keys(),
            prompt_continuation=_continuation,
            multiline=Condition(lambda: is_open(get_app().current_buffer.text)),
            completer=CommandCompleter(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_suspend=True,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            reserve_space_for_menu=0,
            interrupt_exception=Interrupted,
        )


def history_first() -> None:
    """As a prompt begins, keys wait until it knows what was typed before: they may ask for that.
    What was typed ahead, and what is typed in the first milliseconds, keeps its order."""
    app = get_app()
    keys = app.key_processor
    keys.process_keys = lambda: None  # type: ignore[method-assign]  # they stay in its queue

    async def let_in() -> None:
        del keys.process_keys
        keys.process_keys()

    app.current_buffer.load_history_if_not_yet_loaded()  # a task that is done in one go
    app.create_background_task(let_in())


def _continuation(width: int, line_number: int, is_soft_wrap: int) -> str:
    """Before a line of the user's own; where only the terminal's edge broke it there is nothing."""
    return "" if is_soft_wrap else "... "


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class CommandCompleter(Completer):
    """Completes the names of commands, and what may follow them."""

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed = document.text_before_cursor
        name, space, rest = typed.partition(" ")
        if not typed.startswith("/") or "\n" in typed:
            return
        if not space:
            words: Iterable[str] = COMMANDS
        else:
            command = COMMANDS.get(name.lower())
            words = () if command is None or " " in rest else command.choices()
        begun = rest if space else name
        for word in words:
            if word.startswith(begun):
                yield Completion(word, start_position=-len(begun))
