"""The chat on a terminal: reads a line, has it answered or obeyed, and heeds Ctrl-C meanwhile."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from difflib import get_close_matches

import click
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.application.current import set_app

from ...messages import ConfigError, ModelError, RequestError
from ..flight import tell
from ..mistake import Interrupted
from .commands import COMMANDS, Left
from .conversation import STOPPED, Chat
from .keyboard import interrupts_as_keys, keys_while_busy, on_signal
from .prompt import history_first, prompt_session
from .slash import SlashCommand, parse_slash, unquoted


class TerminalChat:
    """One chat between a keyboard and an engine."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._session = prompt_session()
        self._busy: asyncio.Task[None] | None = None  # an answer or a command
        self._is_interrupted = False  # while it was busy
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Chat until Ctrl-D or /exit. Raises Interrupted on a second Ctrl-C at the prompt."""
        facts = self._chat.engine.facts
        self._chat.say(
            f"{facts.model} on {facts.device} in {facts.dtype}; /help helps, Ctrl-D leaves."
        )
        with (
            interrupts_as_keys(sys.stdin.fileno()),
            on_signal(signal.SIGINT, self._interrupt),
            on_signal(signal.SIGCONT, self._chat.displace),
        ):
            try:
                while (text := await self._read()) is not None:
                    await self._attend(self._meant(text))
            except Left:
                return

    def tell(self, text: str) -> None:
        """What is said by neither user nor model, from any thread."""
        self._loop.call_soon_threadsafe(self._tell, text)

    def _tell(self, text: str) -> None:
        """Above the prompt, or below what has been said of an answer."""
        app = self._session.app
        if app.is_running:
            with set_app(app):
                run_in_terminal(lambda: tell(text))
        else:
            self._chat.give_way()
            tell(text)

    async def _read(self) -> str | None:
        """The next message or command; None when the user leaves."""
        is_warned = False
        while True:
            try:
                text = await self._session.prompt_async(pre_run=history_first)
            except Interrupted:
                if is_warned and not self._session.default_buffer.text:
                    raise
                self._chat.say("Ctrl-C once more leaves; so does Ctrl-D.")
                is_warned = True
            except EOFError:
                return None
            else:
                if unquoted(text).strip():
                    return text
                is_warned = False

    def _meant(self, text: str) -> Coroutine[None, None, None]:
        """What a line asks for."""
        command = parse_slash(text)
        return self._chat.ask(unquoted(text)) if command is None else self._obey(command)

    async def _obey(self, command: SlashCommand) -> None:
        known = COMMANDS.get(command.name)
        if known is not None:
            await known.act(self._chat, command.argument)
            return
        near = get_close_matches(command.name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "/help lists what there is."
        self._chat.say(f"There is no command {command.name}; {hint}")

    async def _attend(self, work: Coroutine[None, None, None]) -> None:
        """Do it, until it is done or the user does not want it any more."""
        app = self._session.app
        self._is_interrupted = False
        self._busy = asyncio.create_task(work)
        try:
            with keys_while_busy(app.input, app.output, self._interrupt):
                await self._busy
        except asyncio.CancelledError:
            if not self._is_interrupted:
                raise
            self._chat.say(STOPPED)
        except click.ClickException as mistake:
            self._chat.say(mistake.format_message())
        except (RequestError, ConfigError, ModelError) as error:
            self._chat.say(str(error))
        finally:
            self._busy = None

    def _interrupt(self) -> None:
        """Stop the answer, and keep it; else give the command up. At the prompt this is no news."""
        if self._busy is not None and not self._chat.stop():
            self._is_interrupted = True
            self._busy.cancel()
