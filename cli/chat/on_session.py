"""The commands that work on the conversation."""

import asyncio
import os

from ..mistake import Mistake
from . import clipboard, session_files
from .conversation import Chat
from .session import Session
from .session_files import Saved, path_of
from .stats import ChatStats

FIRST_WORDS = 60  # characters of a question that are enough to recognise it


async def set_system(chat: Chat, text: str) -> None:
    if text:
        chat.session.system = text
    current = chat.session.system
    chat.say(f"The system prompt is: {current}" if current else "There is no system prompt.")


async def clear(chat: Chat, _: str) -> None:
    chat.session.clear()
    chat.stats = ChatStats()
    chat.asked = None
    chat.say("The conversation starts anew.")


async def undo(chat: Chat, _: str) -> None:
    taken = chat.session.undo()
    left = len(chat.session.exchanges)
    chat.say(
        "There is nothing to take back."
        if taken is None
        else f"Taken back: {_first_words(taken.question)} ({left} turn{'s' * (left != 1)} left)"
    )


async def regenerate(chat: Chat, _: str) -> None:
    if not chat.session.exchanges:
        chat.say("There is no answer to replace yet.")
        return
    params = chat.params
    if params.temperature == 0 or params.seed is not None:
        chat.say("(with this temperature and seed the answer hardly changes; see /set)")
    await chat.ask_again()


async def go_on(chat: Chat, _: str) -> None:
    if not chat.session.exchanges:
        chat.say("There is no answer to continue yet.")
        return
    await chat.go_on()


async def copy(chat: Chat, _: str) -> None:
    if not chat.session.exchanges:
        chat.say("There is no answer to copy yet.")
        return
    text = chat.session.exchanges[-1].answer
    taker = await asyncio.to_thread(clipboard.copy, text, may_ask_terminal=chat.look.is_coloured)
    said = f"Copied {len(text):,} characters (through {taker})." if taker else _NO_CLIPBOARD
    chat.say(said)


_NO_CLIPBOARD = (
    "There is no clipboard here: no wl-copy, xclip, xsel or pbcopy, and a terminal that is plain."
)


async def save(chat: Chat, name: str) -> None:
    session = chat.session
    _save(chat, session, name or session.name or session_files.first_name())


async def load(chat: Chat, name: str) -> None:
    if not name:
        names = session_files.saved_names()
        chat.say(f"Saved: {', '.join(names)}" if names else "No session has been saved yet.")
        return
    saved = session_files.load(path_of(name), name)
    chat.settings.restore(saved.settings, chat.engine.default_params)
    chat.session, chat.stats, chat.asked = saved.session, ChatStats(), None
    chat.say(f"Loaded {name}: {_turns(saved.session)}.")
    if saved.model and saved.model != chat.engine.facts.model:
        chat.say(f"It was with {saved.model}, and goes on with {chat.engine.facts.model}.")


async def fork(chat: Chat, name: str) -> None:
    session = chat.session
    _save(chat, session, session.name or session_files.first_name())
    assert session.name is not None
    fork = session.fork()
    _save(chat, fork, name or session_files.free_name(session.name))
    chat.session = fork
    chat.say(f"From here on this is {fork.name}; /load {session.name} returns to the other.")


def _save(chat: Chat, session: Session, name: str) -> None:
    """Another session is never overwritten. Raises Mistake."""
    path = path_of(name)
    if name != session.name and os.path.lexists(path):
        raise Mistake(f"there is {path} already; give another name, or remove it first")
    session_files.save(Saved(session, chat.settings.chosen, chat.engine.facts.model), path)
    session.name = name
    chat.say(f"Saved {_turns(session)} in {path}.")


def _turns(session: Session) -> str:
    count = len(session.exchanges)
    return f"{count} turn{'s' * (count != 1)}"


def _first_words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= FIRST_WORDS else line[: FIRST_WORDS - 3] + "..."
