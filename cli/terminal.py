"""The chat on a terminal: reads a message, streams the answer, obeys slash commands."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.utils import is_dumb_terminal

from ..actors.engine import Engine
from ..messages import RequestError, SamplingParams
from .answer import Answer
from .conversation import Conversation
from .history import BoundedHistory, history_file
from .keyboard import keys_while_busy, on_sigint, quiet_keyboard
from .mistake import Interrupted
from .output import write
from .render import table
from .slash import COMMANDS, KEYS, SlashCommand, parse_slash
from .stats import ChatStats, Row, engine_row, sampling_rows

PROMPT, CONTINUATION = ">>> ", "... "


class TerminalChat:
    """One conversation between a keyboard and an engine."""

    def __init__(self, engine: Engine, conversation: Conversation, params: SamplingParams) -> None:
        self._engine = engine
        self._conversation = conversation
        self._params = params
        self._stats = ChatStats()
        self._session = _prompt_session()
        self._numbers = count(1)
        self._answering: Answer | None = None

    async def run(self) -> None:
        """Chat until Ctrl-D or /exit."""
        facts = self._engine.facts
        write(f"{facts.model} on {facts.device} in {facts.dtype}; /help helps, Ctrl-D leaves.\n")
        with quiet_keyboard(sys.stdin.fileno()), on_sigint(self._stop):
            while (text := await self._read()) is not None:
                command = parse_slash(text)
                if command is None:
                    await self._answer(text)
                elif command.name == "/exit":
                    return
                else:
                    self._obey(command)

    async def _read(self) -> str | None:
        """The next message or command; None when the user leaves."""
        while True:
            try:
                text = await self._session.prompt_async()
            except Interrupted:
                if not self._session.default_buffer.text:
                    write("Ctrl-D or /exit leaves.\n")
            except EOFError:
                return None
            else:
                if text.strip():
                    return text

    async def _answer(self, question: str) -> None:
        """Stream one answer; what came of it before a stop or a fault is kept."""
        answer = Answer(self._engine, f"chat-{next(self._numbers)}")
        messages = self._conversation.ask(question)
        app = self._session.app
        self._answering = answer
        try:
            with keys_while_busy(app.input, app.output, self._stop):
                await answer.stream(messages, self._params)
        except RequestError as error:
            write(f"{error}\n")
        finally:
            self._answering = None
            self._conversation.answer(answer.text)
        if answer.final is not None:
            self._stats.record(answer.final)

    def _stop(self) -> None:
        """End the answer that is being streamed, if there is one."""
        if self._answering is not None:
            self._answering.stop()

    def _obey(self, command: SlashCommand) -> None:
        match command.name:
            case "/help":
                write(table([*COMMANDS.items(), *KEYS.items()]))
            case "/system":
                self._set_system(command.argument)
            case "/clear":
                self._conversation.clear()
                self._stats = ChatStats()
                write("The conversation starts anew.\n")
            case "/stats":
                write(table(self._all_stats()))
            case unknown:
                write(f"There is no command {unknown}; /help lists what there is.\n")

    def _set_system(self, text: str) -> None:
        if text:
            self._conversation.system = text
        current = self._conversation.system
        write(f"The system prompt is: {current}\n" if current else "There is no system prompt.\n")

    def _all_stats(self) -> Iterator[Row]:
        yield from self._stats.rows()
        yield from sampling_rows(self._params, self._engine.default_params)
        yield engine_row(asdict(self._engine.stats()))


def _prompt_session() -> PromptSession[str]:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    with create_app_session(output=PlainTextOutput(sys.stdout) if is_dumb_terminal() else None):
        return PromptSession(
            PROMPT,
            history=BoundedHistory(history_file()),
            key_bindings=keys,
            prompt_continuation=CONTINUATION,
            reserve_space_for_menu=0,
            interrupt_exception=Interrupted,
        )
