"""Incremental decoding: the pieces join to the full decode, whatever the ids."""

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepahead.actors.text.detokenize import MAX_HELD
from stepahead.actors.text.fast_tokenizer import FastTokenizer
from stepahead.actors.text.gguf_tokenizer import make_gguf_tokenizer
from stepahead.actors.text.tokenizer import Tokenizer
from stepahead.actors.text.toy import EOS, ToyTokenizer

from .text_samples import CORPUS, byte_level_metadata, sentencepiece_metadata

TOKENIZERS: dict[str, Tokenizer] = {
    "toy": ToyTokenizer(),
    "byte-level": make_gguf_tokenizer(byte_level_metadata()),
    "sentencepiece": make_gguf_tokenizer(sentencepiece_metadata()),
    "gemma": make_gguf_tokenizer(sentencepiece_metadata("gemma2")),
}
FIRST_BYTE = {"toy": 0, "sentencepiece": 3, "gemma": 3}  # the id of byte 0
bounded = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
every_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


def deltas(tokenizer: Tokenizer, ids: Sequence[int], *, skip: bool = True) -> list[str]:
    """The text after each id, and after the last one what is flushed."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    return [*[detokenizer.push(token_id) for token_id in ids], detokenizer.flush()]


@every_tokenizer
@bounded
@given(data=st.data(), skip=st.booleans())
def test_pieces_join_to_the_full_decode_of_any_ids(
    name: str, data: st.DataObject, skip: bool
) -> None:
    """Field cases 002, 004, 005, 007 and 008."""
    tokenizer = TOKENIZERS[name]
    low, high = FIRST_BYTE.get(name, 0), tokenizer.vocab_size + 2
    one_id = st.one_of(st.integers(0, high), st.integers(low + 0x80, low + 0xFF), st.integers(0, 3))
    ids = data.draw(st.lists(one_id, max_size=40))

    text = "".join(deltas(tokenizer, ids, skip=skip))

    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@every_tokenizer
@bounded
@given(text=st.one_of(st.text(), st.lists(st.sampled_from(CORPUS)).map("".join)))
def test_pieces_join_to_the_text_that_was_encoded(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)

    joined = "".join(deltas(tokenizer, ids, skip=False))

    assert joined == tokenizer.decode(ids, skip_special_tokens=False)
    if name in ("toy", "byte-level"):
        assert joined == text


@bounded
@given(pieces=st.lists(st.binary(max_size=5), max_size=12))
def test_bytes_turn_into_text_as_a_full_decode_shows_them(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)

    assert "".join(deltas(ToyTokenizer(), whole)) == whole.decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["é", "€", "😀", "👨‍👩‍👧‍👦"])
def test_a_character_appears_with_its_last_byte(text: str) -> None:
    pushed = deltas(ToyTokenizer(), text.encode())

    shown = [piece for piece in pushed if piece]
    assert shown == list(text)
    assert pushed[-1] == ""


def test_only_bytes_that_can_no_longer_become_valid_are_replaced() -> None:
    """Field case 002: two bytes of three, then a token that begins with a space."""
    a_word = 300

    assert deltas(ToyTokenizer(), [0xE2, 0x82, a_word]) == ["", "", "\ufffd w300", ""]


@pytest.mark.parametrize("name", ["toy", "sentencepiece"])
def test_an_unfinished_character_is_flushed_once(name: str) -> None:
    """Field case 004."""
    tokenizer = TOKENIZERS[name]
    detokenizer = tokenizer.detokenizer()
    half = FIRST_BYTE[name] + 0xE2

    assert detokenizer.push(half) == ""
    assert detokenizer.flush() == tokenizer.decode([half]) == "\ufffd"
    assert detokenizer.flush() == ""


def test_a_prompt_that_ends_in_half_a_character_leaves_no_text_behind() -> None:
    """Field case 001: the output is decoded by itself."""
    tokenizer = ToyTokenizer()

    output = [0xAC, *b"ok"]  # the prompt ended in the first two bytes of the euro sign

    assert "".join(deltas(tokenizer, output)) == tokenizer.decode(output) == "\ufffdok"


def test_a_run_of_spaces_keeps_its_length() -> None:
    """Field case 007."""
    for tokenizer in TOKENIZERS.values():
        assert "".join(deltas(tokenizer, tokenizer.encode("a    b"))) == "a    b"


def test_the_leading_space_is_treated_as_in_the_full_decode() -> None:
    """Field case 005."""
    for name, expected in {"sentencepiece": "hi", "gemma": " hi", "byte-level": " hi"}.items():
        tokenizer = TOKENIZERS[name]
        first = [i for i in tokenizer.encode(" hi") if i not in tokenizer.special_token_ids]
        for ids in (first, [2, *first]):  # also after a special token that is skipped
            assert "".join(deltas(tokenizer, ids)) == expected


def test_no_space_is_invented_around_special_tokens() -> None:
    """Field case 008."""
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("<|im_start|>word<|im_end|>word")

    assert "".join(deltas(tokenizer, ids, skip=False)) == "<|im_start|>word<|im_end|>word"
    assert "".join(deltas(tokenizer, ids)) == "wordword"


def test_ids_that_name_no_token_have_no_text() -> None:
    for tokenizer in TOKENIZERS.values():
        beyond = tokenizer.vocab_size + 100
        assert "".join(deltas(tokenizer, [beyond])) == tokenizer.decode([beyond]) == ""


def test_special_tokens_of_the_toy_are_shown_on_request() -> None:
    assert "".join(deltas(ToyTokenizer(), [*b"a", EOS], skip=False)) == "a<eos>"
    assert "".join(deltas(ToyTokenizer(), [*b"a", EOS])) == "a"


@pytest.mark.parametrize("name", ["sentencepiece", "gemma"])
@pytest.mark.parametrize("text", ["ไทย" * 60, "👨‍👩‍👧‍👦" * 20, "a" + "é🏳️‍🌈" * 40, "漢" * 90 + "."])
def test_a_long_text_of_byte_tokens_is_shown_while_it_comes(name: str, text: str) -> None:
    """Characters that the vocabulary lacks are runs of byte tokens, which have no end by nature."""
    tokenizer = TOKENIZERS[name]
    ids = [i for i in tokenizer.encode(text) if i not in tokenizer.special_token_ids]

    pieces = deltas(tokenizer, ids)

    assert "".join(pieces) == tokenizer.decode(ids) == text
    shown_at = [place for place, piece in enumerate(pieces) if piece]
    gaps = [b - a for a, b in zip([-1, *shown_at], shown_at, strict=False)]
    assert max(gaps) <= MAX_HELD + 1


def test_a_long_run_of_byte_tokens_that_is_no_text_ends_the_waiting_too() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    no_text = [FIRST_BYTE["sentencepiece"] + 0xFF] * 300

    pieces = deltas(tokenizer, no_text)

    assert "".join(pieces) == tokenizer.decode(no_text) == "\ufffd" * 300
    assert sum(1 for piece in pieces if piece) >= 4


def library_with_odd_tokens() -> tokenizers.Tokenizer:
    """A byte-level vocabulary with added tokens that are not written in the byte alphabet."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: token_id for token_id, token in enumerate(alphabet)}, [])
    )
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(["<\uff5cend\u2581of\u2581text\uff5c>", "<eos>"])
    library.add_tokens(["two words", "\u00e9", "\u65e5\u672c"])
    return library


@bounded
@given(ids=st.lists(st.integers(0, 265), max_size=30), skip=st.booleans())
def test_the_table_of_bytes_decodes_as_the_library_does(ids: list[int], skip: bool) -> None:
    library = library_with_odd_tokens()

    tokenizer = FastTokenizer(library, eos_token_ids=())

    expected = library.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
    assert "".join(deltas(tokenizer, ids, skip=skip)) == expected
