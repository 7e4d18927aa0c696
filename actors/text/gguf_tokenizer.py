"""Builds a tokenizer from the metadata of a GGUF file: vocabulary, special tokens, chat template.

Needs the `tokenizers` library only.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...messages import ModelError
from .fast_tokenizer import FastTokenizer
from .gguf_vocabulary import GgufVocabulary, TokenType
from .pretokenizers import LLAMA3_LIKE, make_pretokenizer
from .sentencepiece import make_sentencepiece
from .templates import JinjaTemplate

if TYPE_CHECKING:
    import tokenizers

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<turn|>")


def make_gguf_tokenizer(metadata: Mapping[str, object]) -> FastTokenizer:
    """Return the tokenizer the file describes, or raise ModelError naming what is not supported."""
    vocabulary = GgufVocabulary(metadata)
    if vocabulary.model == "gpt2":
        library = _make_byte_level(vocabulary)
    elif vocabulary.model == "llama":
        library = make_sentencepiece(vocabulary)
    else:
        raise ModelError(
            f"the tokenizer model {vocabulary.model!r} is not supported; these are: gpt2, llama"
        )
    _add_special_tokens(library, vocabulary)
    return FastTokenizer(
        library,
        eos_token_ids=_eos_token_ids(vocabulary),
        prompt_prefix=_prompt_prefix(vocabulary),
        chat_template=_chat_template(vocabulary),
    )


def _make_byte_level(vocabulary: GgufVocabulary) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, decoders, models

    merges = vocabulary.merges
    if merges is None:
        raise ModelError("the file has no tokenizer.ggml.merges, which a gpt2 tokenizer needs")
    kind = vocabulary.text("pre") or "default"
    pretokenizer = make_pretokenizer(kind)
    try:
        model = models.BPE(vocabulary.ids, merges, ignore_merges=kind in LLAMA3_LIKE)
    except Exception as error:  # the library raises the bare class
        raise ModelError(f"the tokenizer's merges do not fit its vocabulary: {error}") from error
    library = Tokenizer(model)
    library.pre_tokenizer = pretokenizer
    library.decoder = decoders.ByteLevel()
    return library


def _add_special_tokens(library: "tokenizers.Tokenizer", vocabulary: GgufVocabulary) -> None:
    """Let the tokens that stand for themselves be found whole in a text."""
    from tokenizers import AddedToken

    special = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    plain = vocabulary.of_type(TokenType.USER_DEFINED)
    library.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    library.add_tokens([AddedToken(t, normalized=False, special=False) for t in plain])


def _eos_token_ids(vocabulary: GgufVocabulary) -> set[int]:
    """Return the ids that end an answer.

    Many files name the end of a text only and not the end of a turn; then the control token with
    a well-known name is taken.
    """
    named = [vocabulary.token_id(f"{name}_token_id") for name in ("eos", "eot", "eom")]
    ids = {token_id for token_id in named if token_id is not None}
    if vocabulary.token_id("eot_token_id") is None:
        control = set(vocabulary.of_type(TokenType.CONTROL))
        ids.update(vocabulary.ids[token] for token in _END_OF_TURN if token in control)
    return ids


def _prompt_prefix(vocabulary: GgufVocabulary) -> tuple[int, ...]:
    bos = vocabulary.token_id("bos_token_id")
    adds_bos = vocabulary.flag("add_bos_token")
    if adds_bos is None:
        adds_bos = vocabulary.model == "llama" or vocabulary.text("pre") in LLAMA3_LIKE
    return (bos,) if adds_bos and bos is not None else ()


def _chat_template(vocabulary: GgufVocabulary) -> JinjaTemplate | None:
    source = vocabulary.chat_template
    if source is None:
        return None
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {name: vocabulary.token_id(f"{key}_token_id") for name, key in names.items()}
    special = {f"{k}_token": vocabulary.tokens[i] for k, i in ids.items() if i is not None}
    return JinjaTemplate(source, special)
