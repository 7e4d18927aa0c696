"""GgufFile: a GGUF file's metadata as plain values and its tensors by name, memory-mapped.

The gguf package's reader keeps every token of the vocabulary as numpy fields, which takes seconds
on a 50,000-token file; this parser takes a few hundredths of one and checks every bound.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from ...messages import ModelError
from .dequantise import Bytes, Floats, dequantise, layout_of
from .gguf_strings import short_strings

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {  # value type: struct format
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_MAX_DIMS = 8
_MAX_DEPTH = 4  # arrays in arrays
_PIECE = 32_768  # values dequantised at a time; torch copies that many on one thread


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor that is still in the file."""

    name: str
    shape: tuple[int, ...]  # torch order: rows first
    type_name: str
    type_id: int
    data: Bytes  # a read-only view of the mapped file

    def load(self) -> Floats:
        """The values as float32 in `shape`; quantised types are dequantised."""
        return dequantise(self.data, self.type_id).reshape(self.shape)

    def pieces(self) -> Iterator[Floats]:
        """The values in order, flat, in pieces that stay in the processor's cache: the way to
        read a tensor whose values are converted and copied elsewhere at once."""
        layout = layout_of(self.type_id)
        step = _PIECE // layout.num_values * layout.num_bytes
        for begin in range(0, len(self.data), step):
            yield dequantise(self.data[begin : begin + step], self.type_id)


class GgufFile:
    """A parsed GGUF file. Raises ModelError naming the fault when it is not whole.

    `metadata` holds plain ints, floats, bools, strings and lists of them; `tensors` maps names to
    tensors that are read when they are loaded.
    """

    path: Path
    metadata: dict[str, object]
    tensors: Mapping[str, GgufTensor]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size == 0:
                    raise ModelError(f"{path} is empty; a GGUF file was expected")
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        reader = _Reader(memoryview(self._mapped), path)
        num_tensors, num_values = reader.header()
        self.metadata = dict(reader.pairs(num_values))
        infos = [reader.tensor_info() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{path} is corrupt: alignment {alignment!r} is not a positive number")
        data_start = -(-reader.offset // alignment) * alignment
        whole = np.frombuffer(self._mapped, dtype=np.uint8)
        self.tensors = {info.name: _map_tensor(info, whole, data_start, path) for info in infos}
        if len(self.tensors) != num_tensors:
            raise ModelError(f"{path} is corrupt: two tensors have the same name")

    def release(self) -> None:
        """Let go of the memory that what was read takes; what is read again comes from the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]  # torch order
    type_id: int
    offset: int  # from the start of the data section


def _map_tensor(info: _TensorInfo, whole: Bytes, data_start: int, path: Path) -> GgufTensor:
    try:
        layout = layout_of(info.type_id)
    except ModelError as error:
        raise ModelError(f"{path}: tensor {info.name}: {error}") from None
    if info.shape[-1] % layout.num_values:
        raise ModelError(
            f"{path} is corrupt: rows of tensor {info.name} have {info.shape[-1]} values, which "
            f"{layout.name} cannot pack in blocks of {layout.num_values}"
        )
    num_bytes = prod(info.shape) // layout.num_values * layout.num_bytes
    begin = data_start + info.offset
    if begin + num_bytes > len(whole):
        raise ModelError(
            f"{path} is truncated: tensor {info.name} ends at byte {begin + num_bytes}, "
            f"the file has {len(whole)}"
        )
    data = whole[begin : begin + num_bytes]
    return GgufTensor(info.name, info.shape, layout.name, info.type_id, data)


class _Reader:
    """A cursor over the header, which never reads past the end of the file."""

    def __init__(self, buffer: memoryview, path: Path) -> None:
        self._buffer = buffer
        self._path = path
        self.offset = 0

    def header(self) -> tuple[int, int]:
        """Check magic and version; return the numbers of tensors and of metadata values."""
        if bytes(self._buffer[:4]) != _MAGIC:
            raise ModelError(f"{self._path} is not a GGUF file: it does not begin with GGUF")
        self.offset = 4
        version = self._int("<I")
        if version not in _VERSIONS:
            raise ModelError(f"{self._path} has GGUF version {version}; 2 and 3 can be read")
        return self._count("<Q", 24), self._count("<Q", 13)

    def pairs(self, count: int) -> Iterator[tuple[str, object]]:
        for _ in range(count):
            key = self._string()
            yield key, self._value(self._int("<I"))

    def tensor_info(self) -> _TensorInfo:
        name = self._string()
        num_dims = self._int("<I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._corrupt(f"tensor {name} has {num_dims} dimensions")
        dims = [self._int("<Q") for _ in range(num_dims)]
        if 0 in dims:
            raise self._corrupt(f"tensor {name} has no elements")
        return _TensorInfo(name, tuple(reversed(dims)), self._int("<I"), self._int("<Q"))

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self._corrupt(f"value type {kind} is unknown")
        return self._scalar(_SCALARS[kind])

    def _array(self, depth: int = 1) -> list[object]:
        kind = self._int("<I")
        if kind in _SCALARS:
            form = _SCALARS[kind]
            count = self._count("<Q", struct.calcsize(form))
            return list(self._unpack(f"<{count}{form[1]}"))
        if kind == _STRING:
            return self._strings(self._count("<Q", 8))
        if kind != _ARRAY or depth == _MAX_DEPTH:
            raise self._corrupt(f"an array of value type {kind} in {depth} arrays")
        return [self._array(depth + 1) for _ in range(self._count("<Q", 12))]

    def _strings(self, count: int) -> list[object]:
        """Many strings: together where they are short, else in one loop."""
        together = short_strings(self._buffer, self.offset, count)
        if together is not None:
            strings, self.offset = together
            return list[object](strings)
        buffer, offset, size_at = self._buffer, self.offset, struct.Struct("<Q").unpack_from
        found: list[object] = []
        try:
            for _ in range(count):
                begin = offset + 8
                offset = begin + size_at(buffer, offset)[0]
                found.append(str(buffer[begin:offset], "utf-8"))
        except (struct.error, UnicodeDecodeError, OverflowError):
            self.offset = begin
            raise self._corrupt("a list of strings is cut short or not UTF-8") from None
        self.offset = offset
        if offset > len(buffer):
            raise ModelError(f"{self._path} is truncated: it ends inside a list of strings")
        return found

    def _string(self) -> str:
        length = self._count("<Q", 1)
        self.offset += length
        try:
            return str(self._buffer[self.offset - length : self.offset], "utf-8")
        except UnicodeDecodeError:
            raise self._corrupt("a string is not UTF-8") from None

    def _count(self, form: str, least_bytes: int) -> int:
        """A number of things to come, each of at least so many bytes."""
        count = self._int(form)
        if count * least_bytes > len(self._buffer) - self.offset:
            raise ModelError(
                f"{self._path} is truncated or corrupt: byte {self.offset} announces {count} "
                f"items, more than the file holds"
            )
        return count

    def _int(self, form: str) -> int:
        value = self._scalar(form)
        assert isinstance(value, int)
        return value

    def _scalar(self, form: str) -> object:
        value: object = self._unpack(form)[0]
        return value

    def _unpack(self, form: str) -> tuple[object, ...]:
        try:
            values = struct.unpack_from(form, self._buffer, self.offset)
        except struct.error:
            raise ModelError(f"{self._path} is truncated: it ends inside its header") from None
        self.offset += struct.calcsize(form)
        return values

    def _corrupt(self, fault: str) -> ModelError:
        return ModelError(f"{self._path} is corrupt at byte {self.offset}: {fault}")
