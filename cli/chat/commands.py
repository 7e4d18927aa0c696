"""The commands of a chat, in a table: what each is called, tells of itself, does and completes."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ...gpu.loading.resolve import known_models
from ..output import write
from ..render import table
from . import comparing, on_engine, on_session
from .conversation import Chat
from .session_files import saved_names
from .settings import NAMES

Action: TypeAlias = Callable[[Chat, str], Awaitable[None]]


class Left(Exception):
    """Raised when the user leaves the chat by a command."""


@dataclass(frozen=True, slots=True)
class Command:
    """Something that may be typed beside messages."""

    usage: str  # its name, and what may follow
    what: str
    act: Action
    choices: Callable[[], Iterable[str]] = tuple  # what may be completed after the name

    @property
    def name(self) -> str:
        return self.usage.split()[0]


async def show_help(_: Chat, __: str) -> None:
    write(table([*((command.usage, command.what) for command in TABLE), *KEYS.items()]))


async def leave(_: Chat, __: str) -> None:
    raise Left


TABLE = (
    Command("/help", "show this", show_help),
    Command(
        "/model [NAME]",
        "show the model, or go on with another",
        on_engine.use_model,
        lambda: [model.name for model in known_models()],
    ),
    Command(
        "/system [TEXT]",
        "show the system prompt, or set it from the next message on",
        on_session.set_system,
    ),
    Command(
        "/set [NAME [VALUE]]",
        "show or change how answers are sampled; the value `default` takes it back",
        on_engine.set_value,
        lambda: NAMES,
    ),
    Command(
        "/diff [SEED]",
        "answer the last question with another seed, and show where the answers part",
        comparing.diff,
    ),
    Command("/undo", "take the last turn back", on_session.undo),
    Command("/regen", "answer the last question again", on_session.regenerate),
    Command("/continue", "go on with the last answer", on_session.go_on),
    Command("/copy", "copy the last answer to the clipboard", on_session.copy),
    Command("/save [NAME|FILE]", "save the conversation as JSON", on_session.save),
    Command(
        "/load [NAME|FILE]",
        "list what is saved, or go on with it",
        on_session.load,
        saved_names,
    ),
    Command(
        "/fork [NAME]", "save the conversation, and go on in a copy under a name", on_session.fork
    ),
    Command("/clear", "forget the conversation, keep the system prompt", on_session.clear),
    Command("/stats", "show tokens, times and sampling of the last answer", on_engine.show_stats),
    Command("/trace", "draw when the engine did what for it", on_engine.show_timeline),
    Command("/explain", "tell what the engine did for it", on_engine.explain),
    Command("/exit", "leave", leave),
)
COMMANDS = {command.name: command for command in TABLE}
KEYS = {
    "Enter": "send; a pasted text is one message, however many lines it has",
    "Alt-Enter": "start a new line; so does Enter between two lines of three quotes",
    "Tab": "complete a command",
    "Ctrl-X Ctrl-E": "write the message in your editor ($VISUAL or $EDITOR)",
    "Ctrl-C": "stop the answer and keep what was said; at the prompt drop the line, twice leave",
    "Ctrl-Z": "stop for a while; `fg` in the shell goes on",
    "Ctrl-D": "leave",
}
