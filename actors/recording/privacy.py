"""What a recording says of prompts and answers: all, in another alphabet, or nothing.

Kept, a recording is read like a conversation. Masked, every token id is replaced by another one,
always by the same, and salts by others: the cores compare ids and nothing else, so it still
replays. The alphabet is drawn for this writing and kept nowhere. Dropped, all ids are 0: it
explains and draws, and cannot be replayed. Without its tokens a recording has no stop strings, no
structures with their masks, and no words of what is wrong with one; the callers' ids of requests
stay, and so does what devices say of their failures.
"""

import hashlib
import os
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from ...kvpool import prefix_root
from ...messages import Ended, Finished, FinishReason, GrammarReady, Message, seal

ROOT_HEAD = 8  # bytes that tell a salt's length in a root

_TEXTS = {"begun", "stop", "bad_words", "grammar", "text"}
_OTHER_IDS = {"prompt", "stop_token_id", "banned_ids", "logit_bias", "top_ids"}


LEFT_OUT = "what was wrong is left out"


class Tokens(StrEnum):
    """How token ids are written."""

    KEPT = "kept"
    MASKED = "masked"
    DROPPED = "dropped"


class Veil(Protocol):
    """Replaces what is private in a message."""

    def __call__(self, message: Message) -> Message: ...


def veil_of(tokens: Tokens, vocab_size: int) -> Veil:
    """A new one for one recording."""
    if tokens == Tokens.KEPT:
        return lambda message: message
    if tokens == Tokens.DROPPED:
        return Replacing(np.zeros(vocab_size, dtype=np.int32))
    drawn = np.random.default_rng(int.from_bytes(os.urandom(16))).permutation(vocab_size)
    return Replacing(drawn.astype(np.int32))


class Replacing:
    """By a table of new ids; -1 stands for no token and stays."""

    def __init__(self, table: Any) -> None:
        self._table = np.append(table, np.int32(-1))  # so that -1 is found at the end
        self._key = os.urandom(16)
        self._told_by_devices: set[str] = set()  # errors, which end requests in the same turn

    def __call__(self, message: Message) -> Message:
        if isinstance(message, Finished) and message.finish_reason == FinishReason.STOP:
            message = replace(message, stop_reason=self._stop_reason(message.stop_reason))
        veiled: Message = self._within(message)
        return veiled

    def _stop_reason(self, reason: int | str | None) -> int | str | None:
        return "" if isinstance(reason, str) else self.ids(reason)

    def _within(self, value: Any) -> Any:
        changed: dict[str, Any] = {}
        for field in fields(value):
            old = getattr(value, field.name)
            new = self._error(value) if field.name == "error" else self._of(field.name, old)
            if new is not old:
                changed[field.name] = new
        return replace(value, **changed) if changed else value

    def _of(self, name: str, value: Any) -> Any:
        if name.endswith("token_ids") or name in _OTHER_IDS:
            return self.ids(value)
        if name in _TEXTS:
            return () if isinstance(value, tuple) else value if value is None else ""
        if name == "words":  # of a mask: one that allows a single token would tell it
            return seal(np.zeros_like(value))
        if name == "cache_salt":
            return self._salt(value)
        if name == "root":
            return self.root(value)
        if is_dataclass(value):
            return self._within(value)
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            return tuple(map(self._within, value))
        return value

    def _error(self, value: Any) -> str | None:
        """What is wrong with a structure, or with a token, quotes it."""
        error: str | None = value.error
        if not isinstance(value, Ended | GrammarReady):
            self._told_by_devices.add(error or "")
        elif error is not None and error not in self._told_by_devices:
            return LEFT_OUT
        return error

    def root(self, root: bytes) -> bytes:
        """What stands before a first block: the salt is replaced, an adapter stays."""
        if not root:
            return root
        length = ROOT_HEAD + int.from_bytes(root[:ROOT_HEAD], "little")
        return prefix_root(self._salt(root[ROOT_HEAD:length]), root[length:])

    def piece(self, piece: bytes) -> bytes:
        """Tokens as contents are compared (kvpool/content.py)."""
        data: bytes = self._table[np.frombuffer(piece, "<i4")].astype("<i4").tobytes()
        return data

    def ids(self, value: Any) -> Any:
        """Other tokens for these, in the same form."""
        match value:
            case None:
                return None
            case int():
                return int(self._table[value])
            case tuple():
                return tuple(self.ids(part) for part in value)
            case np.ndarray():
                return seal(self._table[value].astype(value.dtype))
            case _:
                return value

    def _salt(self, salt: bytes) -> bytes:
        return hashlib.blake2b(salt, key=self._key, digest_size=16).digest() if salt else salt
