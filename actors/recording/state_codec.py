"""Captured state as msgpack, and back: see state.py."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...messages import DecodeError, seal
from ...messages.codec import message_of, pack, parts_of, unpack
from .state import CONTAINERS, FLAT, TIMES


def pack_state(state: Any) -> bytes:
    return pack(_plain(state))


def unpack_state(data: bytes) -> Any:
    """Raises DecodeError for anything else."""
    try:
        return _captured(unpack(data))
    except (TypeError, ValueError, IndexError) as error:
        raise DecodeError(f"the state of the cores is damaged: {error}") from error


def _plain(state: Any) -> Any:
    match state:
        case ["message", message]:
            return ["message", *parts_of(message)]
        case ["array", place, data, is_writable]:
            return ["array", place, data.shape, np.ascontiguousarray(data).reshape(-1), is_writable]
        case _:
            return _deeper(_plain, state)


def _captured(state: Any) -> Any:
    match state:
        case ["message", name, values]:
            return ["message", message_of(name, values)]
        case ["array", place, shape, data, is_writable]:
            return ["array", place, seal(data.reshape(shape)), is_writable]
        case [str() as name, place, parts] if name.startswith(FLAT):
            return [name, place, [_tupled(part) for part in parts]]
        case _:
            return _deeper(_captured, state)


def _deeper(change: Callable[[Any], Any], state: Any) -> Any:
    """The parts of a state that are states themselves, changed."""
    match state:
        case [str() as name, part, int() as count] if name == TIMES:
            return [TIMES, change(part), count]
        case ["tuple", parts]:
            return ["tuple", [change(part) for part in parts]]
        case ["object", place, name, values]:
            return ["object", place, name, {key: change(part) for key, part in values.items()}]
        case [str() as name, place, parts] if name in CONTAINERS:
            return [name, place, [change(part) for part in parts]]
        case _:
            return state


def _tupled(part: Any) -> Any:
    return tuple(map(_tupled, part)) if isinstance(part, list) else part
