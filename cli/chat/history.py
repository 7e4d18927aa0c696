"""What was typed in earlier chats: bounded, private, and never a reason to fail."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

from .state_folder import private, state_folder

MAX_ENTRIES = 1000
MAX_BYTES = 1_000_000


def history_file() -> Path | None:
    """Where the history is kept, or None where there is no home."""
    folder = state_folder()
    return None if folder is None else folder / "chat-history.jsonl"


class BoundedHistory(History):
    """One JSON string per line, the newest last. A file that cannot be used is done without."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        entries = self._read()
        kept = _newest(entries)
        if len(kept) < len(entries):
            self._rewrite(kept)
        return reversed(kept)

    def store_string(self, string: str) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self._path, "a", encoding="ascii", opener=private) as file:
                file.write(json.dumps(string) + "\n")
        except OSError:
            self._path = None

    def _read(self) -> list[str]:
        try:
            lines = [] if self._path is None else self._path.read_bytes().splitlines()
        except OSError:
            return []
        return [entry for line in lines if (entry := _entry(line)) is not None]

    def _rewrite(self, entries: list[str]) -> None:
        assert self._path is not None
        draft = self._path.with_suffix(f".{os.getpid()}")
        try:
            with open(draft, "w", encoding="ascii", opener=private) as file:
                file.writelines(json.dumps(entry) + "\n" for entry in entries)
            draft.replace(self._path)
        except OSError:
            self._path = None


def _entry(line: bytes) -> str | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _newest(entries: list[str]) -> list[str]:
    """The last entries that fit both bounds, the oldest first."""
    kept: list[str] = []
    room = MAX_BYTES
    for entry in reversed(entries[-MAX_ENTRIES:]):
        room -= len(entry)
        if room < 0:
            break
        kept.append(entry)
    kept.reverse()
    return kept
