"""Lists of strings in a GGUF file, each behind its length: a vocabulary is two of 50,000 or more.

Walking from length to length in Python would take a tenth of a start.
"""

import numpy as np

from ...messages import Longs

_HEADER = 8  # bytes of a length, lowest first
_SHORT = 256  # lengths below it have seven zero bytes, which nothing but a length has
_FIRST_LOOK = 32  # bytes of a string with its length, looked at for all of them together


def short_strings(buffer: memoryview, offset: int, count: int) -> tuple[list[str], int] | None:
    """The strings from `offset` on and where they end, if they are all short and nothing in them
    looks like a length; None where one has to go from each to the next."""
    size = len(buffer) - offset - _HEADER + 1
    if count < 1 or size < 1:
        return None
    look = min(count * _FIRST_LOOK, size)
    lengths, headers = _lengths(buffer, offset, look, count)
    while len(headers) < count and look < size:
        look = min(2 * look, size)
        lengths, headers = _lengths(buffer, offset, look, count)
    if len(headers) < count:
        return None
    ends = headers + _HEADER + lengths
    if headers[0] or not np.array_equal(headers[1:], ends[:-1]):
        return None
    end = offset + int(ends[-1])
    whole = np.frombuffer(buffer[offset:end], dtype=np.uint8)
    is_text = np.ones(len(whole), dtype=np.bool_)
    for place in range(_HEADER - 1):
        is_text[headers + place] = False
    try:  # the last byte of each length is a zero, and stays to part them
        _, *strings = whole[is_text].tobytes().decode().split("\0")
    except UnicodeDecodeError:
        return None
    return (strings, end) if len(strings) == count else None


def _lengths(buffer: memoryview, offset: int, size: int, count: int) -> tuple[Longs, Longs]:
    """The first lengths that begin at one of so many bytes, and at which."""
    numbers = np.ndarray(size, "<u8", buffer, offset, strides=(1,))
    places = np.flatnonzero(numbers < _SHORT)[:count]
    return numbers[places].astype(np.int64), places
