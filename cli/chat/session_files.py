"""Sessions as JSON files: the messages as an API would take them, and what belongs to them."""

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...messages import FinishReason, RequestRejected, SamplingParams
from ..mistake import Mistake
from .session import Exchange, Session
from .state_folder import private, state_folder

VERSION = 1
MAX_BYTES = 50_000_000
_NAME = re.compile(r"[\w-][\w.-]*")


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file holds."""

    session: Session
    settings: dict[str, object]  # what was /set
    model: str


def saved_names() -> list[str]:
    """The names under which there are sessions, sorted."""
    folder = _folder()
    files = [] if folder is None or not folder.is_dir() else folder.glob("*.json")
    return sorted(path.stem for path in files)


def free_name(base: str) -> str:
    """The first of base-2, base-3 and so on that is not taken."""
    taken = set(saved_names())
    stem = re.sub(r"-\d+$", "", base)
    number = 2
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def first_name() -> str:
    """For a session that was given none."""
    return "chat" if "chat" not in saved_names() else free_name("chat")


def path_of(name: str) -> Path:
    """A name's file, or the file that is meant by a path. Raises Mistake."""
    if "/" in name or name.endswith(".json"):
        try:
            return Path(name).expanduser()
        except RuntimeError as error:  # ~somebody
            raise Mistake(f"there is no home for {name}: {error}") from error
    if not _NAME.fullmatch(name):
        raise Mistake(f"{name!r} is no name for a session; use letters, digits, - and _")
    folder = _folder()
    if folder is None:
        raise Mistake("there is no home to keep sessions in; give a path, such as ./chat.json")
    return folder / f"{name}.json"


def save(saved: Saved, path: Path) -> None:
    """Write a session, whole or not at all, for its owner's eyes. Raises Mistake."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(draft, "w", encoding="utf-8", opener=private) as file:
            json.dump(_fields(saved), file, ensure_ascii=False, indent=1)
            file.write("\n")
        draft.replace(path)
    except OSError as error:
        raise Mistake(f"cannot write {path}: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise Mistake(f"cannot write {path}: a message is no valid text") from error


def load(path: Path, name: str) -> Saved:
    """Read a session. Raises Mistake, naming what is wrong with the file."""
    try:
        fields = json.loads(_text(path))
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{path} is not JSON text: {error}") from error
    try:
        return _saved(fields, name)
    except (KeyError, TypeError, ValueError, RequestRejected) as error:
        raise Mistake(f"{path} is not a saved chat: {error}") from error


def _text(path: Path) -> str:
    """Of a file that ends: a device or a pipe may never do so."""
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
        raise Mistake(f"{path} is not a file; it is no session")
    if path.stat().st_size > MAX_BYTES:
        raise Mistake(f"{path} is larger than {MAX_BYTES / 1e6:.0f} MB; it is no session")
    return path.read_text(encoding="utf-8")


def _fields(saved: Saved) -> dict[str, Any]:
    session = saved.session
    messages: list[dict[str, Any]] = []
    for exchange in session.exchanges:
        answer: dict[str, Any] = {"role": "assistant", "content": exchange.answer}
        if exchange.ending is not None:
            answer["finish_reason"] = str(exchange.ending)
        messages += [{"role": "user", "content": exchange.question}, answer]
    return {
        "stepahead_chat": VERSION,
        "model": saved.model,
        "system": session.system,
        "settings": saved.settings,
        "dropped_turns": session.num_dropped,
        "messages": messages,
    }


def _saved(fields: Any, name: str) -> Saved:
    if not isinstance(fields, dict) or fields.get("stepahead_chat") != VERSION:
        raise ValueError(f"it does not begin with stepahead_chat: {VERSION}")
    messages, settings = fields["messages"], fields.get("settings", {})
    system, num_dropped = fields.get("system"), fields.get("dropped_turns", 0)
    if not isinstance(messages, list) or len(messages) % 2 or not isinstance(settings, dict):
        raise ValueError("questions and answers must take turns")
    pairs = zip(messages[::2], messages[1::2], strict=True)
    exchanges = [_exchange(*pair) for pair in pairs]
    if system is not None and not isinstance(system, str):
        raise ValueError("the system prompt is not a text")
    if not isinstance(num_dropped, int) or not 0 <= num_dropped <= len(exchanges):
        raise ValueError("dropped_turns is not a number of turns")
    SamplingParams.from_dict(settings)
    session = Session(system, exchanges, num_dropped, name)
    return Saved(session, settings, str(fields.get("model", "")))


def _exchange(question: Any, answer: Any) -> Exchange:
    texts = question["content"], answer["content"]
    roles = question["role"], answer["role"]
    if roles != ("user", "assistant") or not all(isinstance(text, str) for text in texts):
        raise ValueError("questions and answers must take turns")
    for text in texts:
        text.encode()  # JSON can say half of a surrogate pair, text cannot
    reason = answer.get("finish_reason")
    return Exchange(*texts, None if reason is None else FinishReason(reason))


def _folder() -> Path | None:
    folder = state_folder()
    return None if folder is None else folder / "chats"
