"""The command `chat`: what was asked for, and on what."""

import sys

import click

from ...actors.chat_options import ChatWords
from ...actors.config import EngineConfig
from ...messages import SamplingParams
from ..chat_words import ChatFlags, chat_options
from ..flight import DumpOnSignal, tell
from ..logs import are_on_screen
from ..mistake import Mistake
from ..options import EngineOptions, engine_options
from ..output import is_terminal
from ..piped import read_stdin, stdin_is_terminal
from ..runner import run, running_engine
from ..sampling_options import SamplingOptions, sampling_options
from ..structure_options import structure_options
from . import session_files
from .one_answer import answer_events, answer_text
from .session import Message, Session
from .settings import Settings


@click.command(short_help="Talk to a model, or get one answer in a pipe.")
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@click.option("--load", metavar="NAME|FILE", help="Go on with a conversation that /save saved.")
@click.option("--plain", is_flag=True, help="Show Markdown and code without colours.")
@click.option("--json", "as_json", is_flag=True, help="Print what happens as JSON, event by line.")
@click.option(
    "--begin",
    metavar="TEXT",
    help="What the one answer begins with: the model goes on from it, and only that is shown.",
)
@chat_options
@sampling_options
@structure_options
@engine_options
def chat(
    prompt: str | None,
    system: str | None,
    load: str | None,
    plain: bool,
    as_json: bool,
    begin: str | None,
    flags: ChatFlags,
    sampling: SamplingOptions,
    engine: EngineOptions,
) -> None:
    """Chat on a terminal; with PROMPT or in a pipe give one answer and nothing else."""
    Settings(sampling).params(SamplingParams())  # what is wrong is said before the model loads
    config, (session, settings) = engine.config(), _begun(load, sampling)
    session.system, words = system or session.system, flags.words()
    if prompt is None and stdin_is_terminal() and is_terminal(sys.stdout):
        if as_json:
            raise Mistake("--json gives one answer; add a PROMPT or pipe one in")
        if begin is not None:
            raise Mistake("--begin is for one answer; add a PROMPT or pipe one in")
        plain = plain or are_on_screen(engine.log)  # nothing is to be painted over them
        run(_converse(session, settings, config, words, plain=plain))
        return
    question = _question(prompt)
    if question:
        messages = session.asking(question)
        if begin is not None:
            messages.append({"role": "assistant", "content": begin})
            words["continue_final_message"] = True
        run(_answer(messages, settings, config, words, as_json=as_json))


def _begun(load: str | None, sampling: SamplingOptions) -> tuple[Session, Settings]:
    """The conversation so far, and how it is to go on. Raises Mistake."""
    settings = Settings(sampling)
    if load is None:
        return Session(), settings
    saved = session_files.load(session_files.path_of(load), load)
    settings.restore(saved.settings, SamplingParams())
    return saved.session, settings


def _question(prompt: str | None) -> str:
    """PROMPT, then an empty line, then what was piped in; either may be missing."""
    if prompt is not None and not prompt.strip():
        raise Mistake("the prompt is empty; give some text, or none to chat")
    piped = "" if prompt is not None and stdin_is_terminal() else read_stdin()
    return "\n\n".join(part for part in (prompt, piped) if part is not None and part.strip())


async def _answer(
    messages: list[Message],
    settings: Settings,
    config: EngineConfig,
    words: ChatWords,
    *,
    as_json: bool,
) -> None:
    async with running_engine(config) as engine:
        answer = answer_events if as_json else answer_text
        await answer(engine, messages, settings.params(engine.default_params), words)


async def _converse(
    session: Session, settings: Settings, config: EngineConfig, words: ChatWords, *, plain: bool
) -> None:
    from .conversation import Chat
    from .keyboard import quiet_keyboard
    from .look import Look
    from .terminal import TerminalChat

    dump = DumpOnSignal()
    with quiet_keyboard(sys.stdin.fileno()) as give_back:
        async with running_engine(config, dump, tidy_up=give_back) as engine:
            look = Look.of_terminal(plain=plain)
            chat = Chat(engine, engine.config, session, settings, look, words)
            dump.engine = lambda: chat.engine  # perhaps another one than at first
            terminal = TerminalChat(chat)
            dump.tell = terminal.tell
            try:
                await terminal.run()
            finally:
                dump.tell = tell
                await chat.engine.close()
