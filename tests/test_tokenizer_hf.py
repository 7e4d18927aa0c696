"""Tokenizers from Hugging Face folders, read without transformers where tokenizer.json is there."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from stepahead import ModelError
from stepahead.actors.text.loading import load_tokenizer
from stepahead.actors.text.transformers_tokenizer import (
    SlowTokenizer,
    make_transformers_tokenizer,
)

from .text_samples import CORPUS, byte_level_metadata

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"


def write_folder(folder: Path, *, adds_bos: bool = False, **config: object) -> Path:
    """A folder with a byte-level tokenizer.json and a tokenizer_config.json."""
    metadata = byte_level_metadata()
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    library = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:3]])
    library.enable_truncation(max_length=4)
    if adds_bos:
        library.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
        )
    library.save(str(folder / "tokenizer.json"))
    eos = {"__type": "AddedToken", "content": "<|im_end|>"}
    named = {"bos_token": "<|im_start|>", "eos_token": eos}
    write_json(folder / "tokenizer_config.json", {**named, **config})
    write_json(folder / "config.json", {"model_type": "llama"})
    return folder


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


def test_ids_and_text_equal_those_of_transformers(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    write_folder(tmp_path, model_max_length=9999)
    ours = load_tokenizer(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)

    for text in CORPUS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, truncation=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_tokenizer_read_through_transformers_has_the_same_ids(tmp_path: Path) -> None:
    ours = load_tokenizer(write_folder(tmp_path, adds_bos=True, chat_template=TEMPLATE))
    theirs = make_transformers_tokenizer(tmp_path)

    for text in CORPUS:
        assert ours.encode(text) == theirs.encode(text)
    hi = [{"role": "user", "content": "hi"}]
    assert ours.encode_chat(hi)[0] == theirs.encode_chat(hi)[0]
    assert ours.eos_token_ids == theirs.eos_token_ids == {2}
    assert ours.special_token_ids == theirs.special_token_ids


@pytest.mark.parametrize(
    ("in_file", "config", "expected"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"add_bos_token": False}, False),
        (False, {"add_bos_token": True}, True),
    ],
)
def test_the_flag_decides_about_bos_and_without_it_tokenizer_json(
    in_file: bool, config: dict[str, object], expected: bool, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, adds_bos=in_file, **config))

    assert (tokenizer.encode("a")[0] == 1) == expected
    assert tokenizer.encode("a")[-1] != 2


def test_a_chat_has_one_bos_whether_or_not_the_template_writes_it(tmp_path: Path) -> None:
    """Field case 122."""
    tokenizer = load_tokenizer(write_folder(tmp_path, adds_bos=True, chat_template=TEMPLATE))

    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])[0]

    assert ids == [1, *tokenizer.encode("hi")[1:], 2]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "field"}}, "field"),
        ({"chat_template.json": {"chat_template": "file"}}, "file"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "tools"},
                        {"name": "default", "template": "named"},
                    ]
                }
            },
            "named",
        ),
    ],
)
def test_the_chat_template_is_found_wherever_it_is_kept(
    files: dict[str, object], expected: str, tmp_path: Path
) -> None:
    write_folder(tmp_path)
    for name, value in files.items():
        write_json(tmp_path / name, value)
    tokenizer = load_tokenizer(tmp_path)
    hi = [{"role": "user", "content": "hi"}]

    assert tokenizer.decode(tokenizer.encode_chat(hi)[0]) == expected

    (tmp_path / "chat_template.jinja").write_text("own file")
    assert load_tokenizer(tmp_path).encode_chat(hi)[0] == tokenizer.encode("own file")


def test_tokens_that_only_the_configuration_names_are_added(tmp_path: Path) -> None:
    size = load_tokenizer(write_folder(tmp_path)).vocab_size
    added = {str(size): {"content": "<call>", "special": True, "normalized": False}}

    tokenizer = load_tokenizer(write_folder(tmp_path, added_tokens_decoder=added))

    assert tokenizer.encode("a<call>")[-1] == size
    assert size in tokenizer.special_token_ids
    assert tokenizer.vocab_size == size + 1


def test_threads_may_encode_while_others_decode(tmp_path: Path) -> None:
    """Field case 116."""
    tokenizer = load_tokenizer(write_folder(tmp_path))
    texts = [text * 20 for text in CORPUS] * 4
    expected = [tokenizer.encode(text) for text in texts]

    def round_trip(text: str) -> list[int]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        return ids

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, texts)) == expected


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    (write_folder(tmp_path) / name).write_text('{"model": ')

    with pytest.raises(ModelError, match=name):
        load_tokenizer(tmp_path)


def test_a_folder_without_any_tokenizer_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "llama"})

    with pytest.raises(ModelError, match="no tokenizer"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_written_in_python_is_called_through_transformers() -> None:
    from transformers import ByT5Tokenizer

    tokenizer = SlowTokenizer(ByT5Tokenizer())

    for text in CORPUS[:14]:
        ids = tokenizer.encode(text)
        detokenizer = tokenizer.detokenizer()
        pieces = [*[detokenizer.push(token_id) for token_id in ids], detokenizer.flush()]
        assert "".join(pieces) == tokenizer.decode(ids) == text
        assert pieces[-1] == ""
    assert tokenizer.eos_token_ids == {1}
    assert tokenizer.decode([*tokenizer.encode("a"), 1, 10**6]) == "a"
