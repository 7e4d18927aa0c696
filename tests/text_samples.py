# ruff: noqa: RUF001  # scripts that look like Latin are what these texts are for
"""Tiny vocabularies in GGUF's form, trained on the spot, and texts that tokenizers find hard."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import gguf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CORPUS = [
    "The capital of France is Paris.",
    "  two leading spaces, and a trailing one ",
    "a    b\t\tc",
    "line one\nline two\n\n\nline five\r\n",
    "don't, we'll, I'VE, it's",
    "1234567890 and 3.14159 or 2026-01-31",
    "x = [i**2 for i in range(10)]  # squares",
    "def f(a, *, b=None):\n    return {'a': a, \"b\": b}\n",
    "naïve café, Ärger, Øre, Łódź",
    "日本語のテキストと中文和한국어",
    "Привет, мир! Γειά σου Κόσμε",
    "مرحبا بالعالم שלום עולם",
    "नमस्ते दुनिया สวัสดีชาวโลก",
    "😀 👨‍👩‍👧‍👦 🏳️‍🌈 ✨",
    "zero\u200bwidth and nbsp\u00a0here",
    "<|im_start|>user\nHi<|im_end|>\n",
    "text<|endoftext|>more <|im_end|> spaced",
    "€ $ £ ¥ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﬁ",
    "https://example.org/path?q=1&r=%20#frag",
    "ALLCAPS CamelCase snake_case kebab-case",
    " ",
    "\n",
]

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6


@cache
def byte_level_metadata(pre: str = "gpt-2") -> Mapping[str, object]:
    """A gpt2 tokenizer: three control tokens, a user-defined one, 256 bytes and some merges."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    special = [*CONTROL, "<think>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS * 2, trainer)
    tokens, merges = _vocabulary_of(trained)
    types = [_NORMAL] * len(tokens)
    types[: len(special)] = [_CONTROL] * len(CONTROL) + [_USER_DEFINED]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


@cache
def sentencepiece_metadata(architecture: str = "llama") -> Mapping[str, object]:
    """A llama tokenizer: three specials, 256 byte tokens, the letters of Latin lines, merges."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=220, show_progress=False)
    trained.train_from_iterator([t for t in CORPUS if t.isascii()] * 2, trainer)
    learnt, _ = _vocabulary_of(trained)
    learnt += ["\u2581\u2581", "\u2581\u2581\u2581\u2581", "日本"]
    tokens = [*special, *byte_tokens, *learnt]
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(learnt))],
        "tokenizer.ggml.token_type": [_UNKNOWN, _CONTROL, _CONTROL]
        + [_BYTE] * 256
        + [_NORMAL] * len(learnt),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_gguf(path: Path, metadata: Mapping[str, object]) -> None:
    """Write a GGUF file that holds the metadata and no tensors."""
    writer = gguf.GGUFWriter(path, str(metadata["general.architecture"]))
    add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
    for key, value in metadata.items():
        if key != "general.architecture":
            add.get(type(value), writer.add_array)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _vocabulary_of(trained: Tokenizer) -> tuple[list[str], Sequence[str]]:
    model = json.loads(trained.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return tokens, [" ".join(pair) for pair in model["merges"]]
