"""One message, one msgpack frame: `[type name, [fields in order]]`.

For the socket between processes, for recording and for replay; inside a process messages go by
reference. A recording's frames (frames.py) hold the same two parts. The types come from the
`Message` union and their annotations, so a new message needs nothing here. Bytes from anywhere may
be decoded: they give a valid message or DecodeError.
"""

import reprlib
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack
import numpy as np

from . import Message
from .errors import DecodeError, StepaheadError
from .token_bias import TokenBias

MAX_FRAME = 64 * 1024 * 1024  # bytes; more is not a message
LATER = {"may be missing": True}
"""Metadata of fields, the last ones of a value, that are newer than frames which are still read:
those have the default."""
_HALF_PAIRS = "surrogatepass"  # callers' ids and stop strings may be any text that Python holds
_ARRAY = 1  # the extension type of an array: one letter for its dtype, then its values
_DTYPES: dict[bytes, np.dtype[Any]] = {
    b"i": np.dtype("<i4"),
    b"q": np.dtype("<i8"),
    b"?": np.dtype("?"),
    b"f": np.dtype("<f4"),
}
_LETTERS = {dtype: letter for letter, dtype in _DTYPES.items()}

T = TypeVar("T")
Reader: TypeAlias = Callable[[Any], Any]  # from what msgpack gives to a field's value


def encode(message: Message) -> bytes:
    """The frame of a message."""
    return pack(parts_of(message))


def decode(frame: bytes) -> Message:
    """The message of a frame. Raises DecodeError for anything else."""
    parts = unpack(frame)
    if not isinstance(parts, list) or len(parts) != 2:
        raise DecodeError("the frame is not a pair of type name and fields")
    return message_of(*parts)


def pack(value: object) -> bytes:
    """msgpack of numbers, texts, lists, arrays, and of dataclasses as the list of their fields."""
    return bytes(msgpack.packb(value, default=_pack_other, unicode_errors=_HALF_PAIRS))


def unpack(frame: bytes) -> Any:
    """What was packed, with lists for dataclasses. Raises DecodeError for anything else."""
    if len(frame) > MAX_FRAME:
        raise DecodeError(f"the frame has {len(frame):,} bytes; at most {MAX_FRAME:,} are decoded")
    try:
        return msgpack.unpackb(
            frame,
            ext_hook=_unpack_array,
            use_list=True,
            strict_map_key=True,
            unicode_errors=_HALF_PAIRS,
        )
    except Exception as error:  # msgpack raises whatever its parser met
        raise DecodeError(f"the frame is not msgpack: {error}") from error


def parts_of(message: Message) -> tuple[str, list[Any]]:
    """The name of a message's type, and its fields."""
    return type(message).__name__, _values(message)


def message_of(name: object, values: object) -> Message:
    """The message with these parts, as they were unpacked. Raises DecodeError."""
    cls = _message_types().get(name) if isinstance(name, str) else None
    if cls is None:
        raise DecodeError(f"{_short(name)} is not a type of message")
    message: Message = _reader(cls)(values)
    return message


def value_of(cls: type[T], values: object) -> T:
    """A dataclass of the kind that messages hold, as it was unpacked. Raises DecodeError."""
    value: T = _dataclass(cls)(values)
    return value


def _values(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in fields(value)]


def _pack_other(value: Any) -> Any:
    """What msgpack does not know itself: arrays and the dataclasses inside a message."""
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_ARRAY, _LETTERS[value.dtype] + value.tobytes())
    if is_dataclass(value):
        return _values(value)
    if isinstance(value, TokenBias):
        return list(value.items())
    raise TypeError(f"a message holds a {type(value).__name__}")


def _unpack_array(code: int, data: bytes) -> Any:
    dtype = _DTYPES.get(data[:1])
    if code != _ARRAY or dtype is None or (len(data) - 1) % dtype.itemsize:
        raise DecodeError("an extension of the frame is not an array")
    return np.frombuffer(data, dtype=dtype, offset=1)  # read-only: it is a view of bytes


@cache
def _message_types() -> dict[str, type]:
    return {cls.__name__: cls for cls in get_args(Message)}


@cache
def _reader(kind: Any) -> Reader:
    """How a field of this annotated type is read."""
    if kind in (int, str, bytes, bool):
        return _exactly(kind)
    if kind is float:
        return _number
    if kind is type(None):
        return _exactly(type(None))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _first_of([_reader(arg) for arg in args])
    if origin is Literal:
        return _literal(args)
    if origin is tuple and args[-1:] == (Ellipsis,):
        return _tuple(_reader(args[0]))
    if origin is Mapping:
        return _mapping(_reader(args[0]), _reader(args[1]))
    if origin is np.ndarray:
        return _array(np.dtype(get_args(args[1])[0]))
    raise TypeError(f"messages cannot hold a {kind}")


def _exactly(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise DecodeError(f"{_short(value)} stands where a {kind.__name__} belongs")
        return value

    return read


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise DecodeError(f"{_short(value)} stands where a number belongs")
    return value


def _enum(kind: type[Enum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError as error:
            raise DecodeError(f"{_short(value)} is not a {kind.__name__}") from error

    return read


def _literal(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not str or value not in choices:
            raise DecodeError(f"{_short(value)} is none of {choices}")
        return value

    return read


def _tuple(item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise DecodeError(f"{_short(value)} stands where a list belongs")
        return tuple(item(part) for part in value)

    return read


def _mapping(key: Reader, item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or not all(_is_pair(part) for part in value):
            raise DecodeError(f"{_short(value)} stands where a list of pairs belongs")
        return TokenBias({key(part[0]): item(part[1]) for part in value})

    return read


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _array(dtype: np.dtype[Any]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype != dtype:
            raise DecodeError(f"{_short(value)} stands where an array of {dtype} belongs")
        return value

    return read


def _first_of(readers: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        for reader in readers:
            try:
                return reader(value)
            except DecodeError:
                continue
        raise DecodeError(f"{_short(value)} fits none of a field's types")

    return read


def _dataclass(cls: type) -> Reader:
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    least = sum(field.metadata != LATER for field in fields(cls))

    def read(values: Any) -> Any:
        if not isinstance(values, list) or not least <= len(values) <= len(names):
            raise DecodeError(f"{cls.__name__} has {len(names)} fields, not {_short(values)}")
        given = {
            name: _reader(hints[name])(value) for name, value in zip(names, values, strict=False)
        }
        try:
            return cls(**given)
        except StepaheadError as error:
            raise DecodeError(f"{cls.__name__} cannot be: {error}") from error

    return read


def _short(value: Any) -> str:
    """A value in few characters, however large it is."""
    return reprlib.repr(value)
