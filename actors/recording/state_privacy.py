"""Masking captured state: the same alphabet as in the messages, so that it goes on to replay.

In the pool every text of bytes is tokens, but for what stands before a first block.
"""

from typing import Any

import numpy as np

from ...messages import seal
from .privacy import Replacing
from .state import CONTAINERS, FLAT, TIMES

_ROOTS = {"before", "root", "_roots"}
_IDS = {"tokens", "_tokens", "_stop_ids", "_more_stop_ids"}


def mask_state(state: Any, veil: Replacing) -> Any:
    """The state with other tokens and salts."""
    return _Masking(veil).of(state, "", is_pool=False)


class _Masking:
    def __init__(self, veil: Replacing) -> None:
        self._veil = veil

    def of(self, state: Any, field: str, *, is_pool: bool) -> Any:
        match state:
            case bytes() if is_pool:
                return self._bytes(field, state)
            case ["message", message]:
                return ["message", self._veil(message)]
            case ["array", place, data, is_writable] if field in _IDS:
                return ["array", place, self._veil.ids(data), is_writable]
            case ["array", place, data, is_writable] if field == "mask":  # it may allow one alone
                return ["array", place, seal(np.zeros_like(data)), is_writable]
            case ["rows", slots, rows]:
                return ["rows", slots, [self._veil.ids(row) for row in rows]]
            case ["tuple", [before, bytes() as piece]] if is_pool:
                return ["tuple", self._key(before, piece)]
            case ["tuple", parts]:
                return ["tuple", [self.of(part, field, is_pool=is_pool) for part in parts]]
            case [str() as name, part, int() as count] if name == TIMES:
                return [TIMES, self.of(part, field, is_pool=is_pool), count]
            case ["object", place, name, values]:
                return ["object", place, name, self._values(name, values)]
            case [str() as name, place, parts] if name in CONTAINERS:
                return [name, place, [self.of(part, field, is_pool=is_pool) for part in parts]]
            case [str() as name, place, parts] if name.startswith(FLAT):
                return [name, place, [self._flat(part, field, is_pool=is_pool) for part in parts]]
            case _:
                return state

    def _values(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        is_pool = ".kvpool." in name
        return {field: self.of(part, field, is_pool=is_pool) for field, part in values.items()}

    def _flat(self, part: Any, field: str, *, is_pool: bool) -> Any:
        match part:
            case (before, bytes() as piece) if is_pool:
                return tuple(self._key(before, piece))
            case tuple():
                return tuple(self._flat(each, field, is_pool=is_pool) for each in part)
            case bytes() if is_pool:
                return self._bytes(field, part)
            case int() if field == "_more_stop_ids":
                return self._veil.ids(part)
            case _:
                return part

    def _key(self, before: Any, piece: bytes) -> list[Any]:
        is_root = isinstance(before, bytes)
        return [self._veil.root(before) if is_root else before, self._veil.piece(piece)]

    def _bytes(self, field: str, value: bytes) -> bytes:
        return self._veil.root(value) if field in _ROOTS else self._veil.piece(value)
