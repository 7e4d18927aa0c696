"""The second backend: xgrammar, which computes most of its masks when a structure is compiled."""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np
import tokenizers
import xgrammar

from ...messages import Bools, Ints, RequestRejected, StructuredOutput, StructureKind, seal
from .backend import refused
from .completion import packed
from .schema import check_schema
from .vocabulary import TokenBytes
from .xgrammar_subset import check_pattern, check_subset

MAX_WHITE_SPACE = 17  # characters between two parts of JSON
_NOT_JSON = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")  # tabs are lost as white space, too


class XgrammarMatcher:
    """A matcher of xgrammar."""

    def __init__(self, matcher: Any, text: Ints) -> None:
        self._matcher = matcher
        self._text = text  # a mask of all that stands for text

    def mask(self) -> Ints:
        words = np.empty((1, len(self._text)), dtype=np.int32)
        self._matcher.fill_next_token_bitmask(words)
        text: Ints = words[0] & self._text
        return text

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def forced(self) -> list[int]:
        token_ids: list[int] = self._matcher.find_jump_forward_tokens()
        return token_ids

    def follow(self, token_ids: Sequence[int]) -> int:
        count = 0
        for token_id in token_ids:
            if not self._matcher.accept_token(token_id):
                break
            count += 1
        is_whole = count == len(token_ids) and self.may_end
        if count:
            self._matcher.rollback(count)
        return count + is_whole

    @property
    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def copy(self) -> Self:
        return type(self)(self._matcher.fork(), self._text)


class XgrammarBackend:
    """Compiles structures with xgrammar, for one tokenizer."""

    def __init__(
        self, tokens: str | TokenBytes, *, vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        eos = sorted(eos_token_ids)
        encoded, kind = _described(tokens) if isinstance(tokens, str) else _plain(tokens)
        info = xgrammar.TokenizerInfo(
            encoded, kind, vocab_size=max(vocab_size, len(encoded)), stop_token_ids=eos
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        pieces: list[bytes] = info.decoded_vocab
        self._pieces = [*pieces, *[b""] * (info.vocab_size - len(pieces))]
        is_text = np.array([bool(piece) for piece in self._pieces])
        is_text[eos] = False
        self._text = _mask_of(is_text)
        # Strings of a bounded length may hold what JSON does not allow in a string.
        is_json = [not _NOT_JSON.search(piece) for piece in self._pieces]
        self._json = _mask_of(is_text & np.array(is_json))

    def pieces(self) -> list[bytes]:
        """The bytes of each token; none for special tokens."""
        return self._pieces

    def compile(self, structure: StructuredOutput) -> XgrammarMatcher:
        try:
            compiled = self._compiler.compile_grammar(_grammar(structure))
        except RuntimeError as error:  # it begins with a time and a place in the library's source
            raise refused(structure, str(error).rpartition("] ")[2] or str(error)) from error
        is_json = structure.kind in (StructureKind.JSON_SCHEMA, StructureKind.JSON_OBJECT)
        text = self._json if is_json else self._text
        return XgrammarMatcher(xgrammar.GrammarMatcher(compiled), text)


def _grammar(structure: StructuredOutput) -> Any:
    match structure.kind:
        case StructureKind.JSON_SCHEMA:
            schema = json.loads(structure.text)
            check_schema(schema)
            check_subset(schema)
            return _of_schema(structure.text)
        case StructureKind.JSON_OBJECT:
            return _of_schema('{"type": "object"}')
        case StructureKind.REGEX:
            check_pattern("regex", structure.text)
            return xgrammar.Grammar.from_regex(structure.text)
        case StructureKind.CHOICE:
            choices = " | ".join(json.dumps(choice) for choice in structure.choices)
            return xgrammar.Grammar.from_ebnf(f"root ::= {choices}")
        case StructureKind.GRAMMAR:
            return xgrammar.Grammar.from_lark(structure.text)


def _of_schema(text: str) -> Any:
    return xgrammar.Grammar.from_json_schema(
        text, any_whitespace=True, max_whitespace_cnt=MAX_WHITE_SPACE, strict_mode=False
    )


def _mask_of(bits: Bools) -> Ints:
    """These tokens, packed 32 to a word."""
    return seal(packed(bits, -(-len(bits) // 32)))


def _plain(tokens: TokenBytes) -> tuple[list[bytes], Any]:
    special = set(tokens.special_token_ids)
    pieces = [b"" if i in special else piece for i, piece in enumerate(tokens.pieces)]
    return pieces, xgrammar.VocabType.RAW


def _described(description: str) -> tuple[list[str], Any]:
    """The tokens as the tokenizers library writes them, special ones left empty, and what they are
    written in."""
    library = tokenizers.Tokenizer.from_str(description)
    vocabulary = library.get_vocab(with_added_tokens=True)
    encoded = [""] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        encoded[token_id] = token
    for token_id, added in library.get_added_tokens_decoder().items():
        if added.special:
            encoded[token_id] = ""
    decoder = json.dumps(json.loads(description)["decoder"])
    if "ByteLevel" in decoder:
        return encoded, xgrammar.VocabType.BYTE_LEVEL
    if "ByteFallback" in decoder or "Metaspace" in decoder:
        return encoded, xgrammar.VocabType.BYTE_FALLBACK
    raise RequestRejected(
        "structured_output cannot be had with this model and xgrammar: its tokenizer is neither "
        "byte-level nor has it a byte fallback; use grammar_backend='llguidance'"
    )
