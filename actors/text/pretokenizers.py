"""How byte-level vocabularies cut a text into words before merging, by the name in a GGUF file."""

from typing import TYPE_CHECKING

from ...messages import ModelError

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

_GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)  # fmt: skip
_SINGLE_DIGIT = r"\p{N}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CAPITALISED = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
_TEKKEN = rf"{_CAPITALISED}|{_CAPITALS}|\p{{N}}|{_SYMBOLS_WITH_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_CAPITALISED}{_CONTRACTION}?|{_CAPITALS}{_CONTRACTION}?|\p{{N}}{{1,3}}"
    rf"|{_SYMBOLS_WITH_SLASH}|{_SPACES}"
)
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)

_FAMILIES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("default", "gpt-2", "gpt2", "mpt", "olmo", "phi-2", "jais", "roberta-bpe"): (_GPT2,),
    (
        "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
    ): (_SINGLE_DIGIT, _GPT2),
    (
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "dbrx", "smaug-bpe",
    ): (_LLAMA3,),
    ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"): (_QWEN2,),
    ("qwen35",): (_QWEN35,),
    ("tekken",): (_TEKKEN,),
    ("gpt-4o", "llama4", "kanana2", "minimax-m2"): (_GPT4O,),
    ("deepseek-v3",): _DEEPSEEK_V3,
}  # fmt: skip
_PATTERNS = {name: patterns for names, patterns in _FAMILIES.items() for name in names}

LLAMA3_LIKE = frozenset(
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
) | {"tekken"}
"""Kinds that look the whole word up before merging, and begin with BOS unless the file says no."""


def make_pretokenizer(kind: str) -> "pre_tokenizers.PreTokenizer":
    """Return the pre-tokenizer that a GGUF file calls `kind`."""
    from tokenizers import Regex, pre_tokenizers

    patterns = _PATTERNS.get(kind)
    if patterns is None:
        known = ", ".join(sorted(_PATTERNS))
        raise ModelError(f"the pre-tokenizer {kind!r} is not supported; these are: {known}")
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, spelling])
