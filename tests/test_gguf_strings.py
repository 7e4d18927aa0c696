"""Strings of a GGUF file read together are those read one by one."""

import random
import struct

import pytest

from stepahead.gpu.loading.gguf_strings import short_strings


def packed(strings: list[str]) -> bytes:
    return b"".join(struct.pack("<Q", len(s.encode())) + s.encode() for s in strings)


@pytest.mark.parametrize("seed", range(20))
def test_short_strings_are_found_wherever_they_begin_and_whatever_follows(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        words = [rng.choices("abĠé漢\N{GRINNING FACE}", k=rng.randint(1, 63)) for _ in range(30)]
        strings = ["".join(word) for word in words]
        before, after = rng.randbytes(rng.randint(0, 9)), rng.choice([b"", bytes(30), b"\1" * 30])

        data = memoryview(before + packed(strings) + after)

        end = len(data) - len(after)
        assert short_strings(data, len(before), len(strings)) == (strings, end)


@pytest.mark.parametrize(
    "strings",
    [["a" * 256, "b"], ["", "b"], ["a", ""], ["a\0b", "c"], ["\0" * 9, "b"], ["a", "b" + "\0" * 8]],
    ids=repr,
)
def test_what_may_be_mistaken_is_left_to_be_read_one_by_one(strings: list[str]) -> None:
    assert short_strings(memoryview(packed(strings)), 0, len(strings)) in (
        None,
        (strings, len(packed(strings))),
    )


@pytest.mark.parametrize("data", [b"", bytes(7), packed(["abc"])[:-1], packed(["ab"])])
def test_a_list_that_is_cut_short_is_not_read(data: bytes) -> None:
    assert short_strings(memoryview(data), 0, 2) is None


def test_bytes_that_are_no_text_are_not_read() -> None:
    assert short_strings(memoryview(struct.pack("<Q", 2) + b"\xc3\x28"), 0, 1) is None
