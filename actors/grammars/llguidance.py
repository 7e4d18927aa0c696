"""The first backend: llguidance, whose masks are computed as they are asked for."""

import json
from collections.abc import Collection, Sequence
from typing import Any, Self

import llguidance
import numpy as np

from ...messages import Ints, StructuredOutput, StructureKind, seal
from .backend import refused
from .schema import check_schema
from .vocabulary import TokenBytes

WHITE_SPACE = r" |\n[ \t]{0,16}"
"""Between two parts of JSON; without a bound a model may fill its answer with nothing else."""

_JSON: Any = {"whitespace_flexible": True, "whitespace_pattern": WHITE_SPACE}
_ANY_OBJECT = '{"type": "object"}'


class LlguidanceMatcher:
    """A matcher of llguidance."""

    def __init__(self, matcher: Any, text: Ints, eos_token_id: int) -> None:
        self._matcher = matcher
        self._text = text  # a mask of all but the ends of sequence
        self._eos_token_id = eos_token_id

    def mask(self) -> Ints:
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype="<i4")
        text: Ints = words[: len(self._text)] & self._text
        return text

    def accept(self, token_id: int) -> bool:
        return int(self._matcher.try_consume_tokens([token_id])) == 1

    def forced(self) -> list[int]:
        token_ids: list[int] = self._matcher.compute_ff_tokens()
        return token_ids

    def follow(self, token_ids: Sequence[int]) -> int:
        # Ten times as fast as to follow them with a copy.
        count: int = self._matcher.validate_tokens([*token_ids, self._eos_token_id])
        return count

    @property
    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def copy(self) -> Self:
        return type(self)(self._matcher.deep_copy(), self._text, self._eos_token_id)


class LlguidanceBackend:
    """Compiles structures with llguidance, for one tokenizer."""

    def __init__(
        self, tokens: str | TokenBytes, *, vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        """Takes about a second for a large vocabulary."""
        eos = sorted(eos_token_ids)
        if isinstance(tokens, str):
            self._tokenizer = llguidance.LLTokenizer(tokens, n_vocab=vocab_size, eos_token=eos)
        else:
            self._tokenizer = llguidance.LLTokenizer(_wrapped(tokens, eos), eos_token=eos)
        self._eos_token_id = eos[0]
        bits = np.ones(-(-self._tokenizer.vocab_size // 32) * 32, dtype=np.bool_)
        bits[eos] = False
        self._text = seal(np.packbits(bits, bitorder="little").view("<i4").astype(np.int32))

    def pieces(self) -> list[bytes]:
        """The bytes of each token; none for special tokens."""
        tokenizer = self._tokenizer
        return [
            b"" if tokenizer.is_special_token(token_id) else tokenizer.decode_bytes([token_id])
            for token_id in range(tokenizer.vocab_size)
        ]

    def compile(self, structure: StructuredOutput) -> LlguidanceMatcher:
        try:
            matcher = llguidance.LLMatcher(self._tokenizer, _grammar(structure), log_level=0)
        except ValueError as error:
            raise refused(structure, str(error)) from error
        if matcher.is_error():
            raise refused(structure, matcher.get_error())
        return LlguidanceMatcher(matcher, self._text, self._eos_token_id)


def _grammar(structure: StructuredOutput) -> str:
    grammar: str
    match structure.kind:
        case StructureKind.JSON_SCHEMA:
            check_schema(json.loads(structure.text))
            grammar = llguidance.LLMatcher.grammar_from_json_schema(structure.text, overrides=_JSON)
        case StructureKind.JSON_OBJECT:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(_ANY_OBJECT, overrides=_JSON)
        case StructureKind.REGEX:
            grammar = llguidance.LLMatcher.grammar_from_regex(structure.text)
        case StructureKind.CHOICE:
            choices = " | ".join(json.dumps(choice) for choice in structure.choices)
            grammar = llguidance.LLMatcher.grammar_from_lark(f"start: {choices}")
        case StructureKind.GRAMMAR:
            grammar = llguidance.LLMatcher.grammar_from_lark(structure.text)
    return grammar


class _Wrapper:
    """A tokenizer in the form in which llguidance takes one that is not the library's."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: TokenBytes, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.tokens = list(tokens.pieces)
        self.special_token_ids = list(tokens.special_token_ids)
        self._encode = tokens.encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _wrapped(tokens: TokenBytes, eos: Sequence[int]) -> Any:
    return _Wrapper(tokens, eos[0])
