"""Tokenizers built from GGUF files: the same ids as transformers, special tokens, BOS, EOS."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stepahead import ModelError, RequestRejected
from stepahead.actors.text.gguf_tokenizer import make_gguf_tokenizer
from stepahead.actors.text.loading import load_tokenizer
from stepahead.gpu.loading.resolve import known_models

from .text_samples import CORPUS, byte_level_metadata, sentencepiece_metadata, write_gguf

BYTE_LEVEL_KINDS = ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o"]


def changed(metadata: Mapping[str, object], **changes: object) -> dict[str, object]:
    """Copy the metadata with other `tokenizer.ggml` values; None takes a value away."""
    whole = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return {key: value for key, value in whole.items() if value is not None}


@pytest.mark.parametrize("kind", BYTE_LEVEL_KINDS)
def test_byte_level_ids_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """Field cases 139 and 140."""
    check_against_transformers(byte_level_metadata(kind), tmp_path)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3"])
def test_ids_from_scores_equal_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    """Field case 139."""
    check_against_transformers(sentencepiece_metadata(architecture), tmp_path)


def check_against_transformers(metadata: Mapping[str, object], folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    write_gguf(folder / "tiny.gguf", metadata)
    ours = load_tokenizer(folder / "tiny.gguf")
    theirs = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file="tiny.gguf")
    for text in CORPUS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected


def test_the_default_model_has_the_ids_of_transformers() -> None:
    from transformers import PreTrainedTokenizerFast

    path = known_models()[0].find()
    assert path is not None, "set-up installs the default model"
    ours = load_tokenizer(path)
    theirs = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)

    for text in CORPUS:
        assert ours.encode(text) == theirs.encode(text)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ours.encode_chat(messages)[0] == expected
    assert ours.eos_token_ids == {2}
    assert ours.vocab_size == 49152


def test_loads_a_gguf_file_without_transformers_or_torch(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", byte_level_metadata())
    program = (
        "import sys; from pathlib import Path\n"
        "from stepahead.actors.text.loading import load_tokenizer\n"
        f"assert load_tokenizer(Path({str(tmp_path / 'tiny.gguf')!r})).encode('a')\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (found.stdout.strip(), found.stderr) == ("set()", "")


def test_a_special_token_is_one_id_and_the_text_around_it_is_untouched() -> None:
    """Field case 140."""
    tokenizer = make_gguf_tokenizer(byte_level_metadata())

    ids = tokenizer.encode("a<|im_end|> b<think>")

    assert ids == [*tokenizer.encode("a"), 2, *tokenizer.encode(" b"), 3]
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.decode(ids) == "a b<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|> b<think>"


@pytest.mark.parametrize("text", ["hi", "<|im_start|>hi", "<|im_start|><|im_start|>hi", ""])
def test_a_prompt_begins_with_exactly_one_bos(text: str) -> None:
    """Field case 122."""
    tokenizer = make_gguf_tokenizer(changed(byte_level_metadata(), add_bos_token=True))

    ids = tokenizer.encode(text)

    assert ids[0] == 1
    assert ids.count(1) == 1


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "hi"])
def test_a_chat_begins_with_exactly_one_bos(template: str) -> None:
    """Field case 122."""
    metadata = changed(byte_level_metadata(), add_bos_token=True)
    tokenizer = make_gguf_tokenizer({**metadata, "tokenizer.chat_template": template})

    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])[0]

    assert ids == tokenizer.encode("hi")


@pytest.mark.parametrize(
    ("metadata", "adds_bos"),
    [
        (changed(byte_level_metadata(), add_bos_token=None), False),
        (changed(byte_level_metadata("llama-bpe"), add_bos_token=None), True),
        (byte_level_metadata("llama-bpe"), False),
        (sentencepiece_metadata(), True),
        (changed(sentencepiece_metadata(), add_bos_token=False), False),
    ],
)
def test_the_flag_decides_about_bos_and_without_it_the_kind(
    metadata: Mapping[str, object], adds_bos: bool
) -> None:
    assert (make_gguf_tokenizer(metadata).encode("a")[0] == 1) == adds_bos


def test_the_file_decides_whether_a_text_gets_a_leading_space() -> None:
    """Field case 139."""
    with_space = make_gguf_tokenizer(sentencepiece_metadata())
    without = make_gguf_tokenizer(changed(sentencepiece_metadata(), add_space_prefix=False))

    assert with_space.encode("hi") == without.encode(" hi")
    assert with_space.encode("hi") != without.encode("hi")
    assert with_space.decode(with_space.encode("hi")) == "hi"
    assert without.decode(without.encode(" hi")) == " hi"


def test_bytes_stand_in_for_characters_the_vocabulary_lacks() -> None:
    tokenizer = make_gguf_tokenizer(changed(sentencepiece_metadata(), add_bos_token=False))

    ids = tokenizer.encode("😀")

    assert ids[1:] == [3 + byte for byte in "😀".encode()]
    assert tokenizer.decode(ids) == "😀"


def test_the_end_of_a_turn_ends_an_answer_too() -> None:
    """Field case 029."""
    named = changed(byte_level_metadata(), eos_token_id=0, eot_token_id=1)
    unnamed = changed(byte_level_metadata(), eos_token_id=0)

    assert make_gguf_tokenizer(named).eos_token_ids == {0, 1}
    assert make_gguf_tokenizer(unnamed).eos_token_ids == {0, 2}  # <|im_end|>, a well-known name


def test_a_model_without_a_template_refuses_a_chat() -> None:
    tokenizer = make_gguf_tokenizer(byte_level_metadata())

    with pytest.raises(RequestRejected, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "hi"}])[0]


def test_text_that_utf8_cannot_hold_is_refused() -> None:
    tokenizer = make_gguf_tokenizer(byte_level_metadata())

    with pytest.raises(RequestRejected, match="position 1"):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"pre": "unheard-of"}, "pre-tokenizer 'unheard-of'"),
        ({"model": "rwkv"}, "tokenizer model 'rwkv'"),
        ({"model": None}, "tokenizer model None"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"merges": ["a b c"]}, "tokenizer.ggml.merges"),
        ({"merges": ["never seen"]}, "merges"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type"),
        ({"eos_token_id": 5000}, "eos_token_id is 5000"),
        ({"bos_token_id": "one"}, "bos_token_id is 'one'"),
        ({"add_bos_token": 1}, "add_bos_token is 1"),
    ],
)
def test_metadata_that_makes_no_sense_is_named(changes: dict[str, object], fault: str) -> None:
    with pytest.raises(ModelError, match=fault):
        make_gguf_tokenizer(changed(byte_level_metadata(), **changes))


def test_scores_or_merges_are_needed() -> None:
    with pytest.raises(ModelError, match="neither"):
        make_gguf_tokenizer(changed(sentencepiece_metadata(), scores=None))


def test_the_error_names_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "odd.gguf", changed(byte_level_metadata(), pre="unheard-of"))

    with pytest.raises(ModelError, match=r"odd\.gguf: the pre-tokenizer 'unheard-of'"):
        load_tokenizer(tmp_path / "odd.gguf")
