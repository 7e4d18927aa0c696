"""The `tokenizer.*` metadata of a GGUF file as checked values."""

import operator
from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property

from ...messages import ModelError

_PREFIX = "tokenizer.ggml."
_split = operator.methodcaller("split", " ")


class TokenType(IntEnum):
    """What a token is for, as GGUF files number it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufVocabulary:
    """Tokens by id, and what the file says about them; ModelError where it makes no sense."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.model = self.text("model")  # the kind of tokenizer
        self.architecture = str(metadata.get("general.architecture", ""))
        self.tokens = self._strings("tokens")
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        self.merges = self._merges()
        self._types = self._numbers("token_type")

    def text(self, key: str) -> str | None:
        value = self._metadata.get(_PREFIX + key)
        if value is not None and not isinstance(value, str):
            raise _wrong(key, value, "a text")
        return value

    def flag(self, key: str) -> bool | None:
        value = self._metadata.get(_PREFIX + key)
        if value is not None and not isinstance(value, bool):
            raise _wrong(key, value, "true or false")
        return value

    def token_id(self, key: str) -> int | None:
        value = self._metadata.get(_PREFIX + key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise _wrong(key, value, f"an id below {len(self.tokens)}, the size of the vocabulary")
        return value

    def of_type(self, *types: TokenType) -> list[str]:
        """Return the tokens of these types in the order of their ids."""
        wanted = set(types)
        pairs = zip(self.tokens, self._types or (), strict=False)
        return [token for token, token_type in pairs if token_type in wanted]

    @cached_property
    def scores(self) -> list[float] | None:
        """How early each token is merged, the highest first; None when the file has none."""
        return self._numbers("scores")

    @property
    def chat_template(self) -> str | None:
        value = self._metadata.get("tokenizer.chat_template")
        if value is not None and not isinstance(value, str):
            raise ModelError(f"tokenizer.chat_template is {value!r}; it must be a text")
        return value

    def _strings(self, key: str) -> list[str]:
        values = self._metadata.get(_PREFIX + key)
        if not isinstance(values, list) or not values:
            raise ModelError(f"the file has no {_PREFIX}{key}; a tokenizer needs that list")
        if set(map(type, values)) != {str}:
            raise ModelError(f"{_PREFIX}{key} holds something that is not a text")
        return values

    def _numbers(self, key: str) -> list[float] | None:
        values = self._metadata.get(_PREFIX + key)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != len(self.tokens):
            raise ModelError(f"{_PREFIX}{key} must be a list of {len(self.tokens)} numbers")
        return values

    def _merges(self) -> list[tuple[str, str]] | None:
        if _PREFIX + "merges" not in self._metadata:
            return None
        try:
            return [(left, right) for left, right in map(_split, self._strings("merges"))]
        except ValueError:
            raise ModelError(
                f"{_PREFIX}merges holds something that is not two tokens and a space"
            ) from None


def _wrong(key: str, value: object, right: str) -> ModelError:
    return ModelError(f"{_PREFIX}{key} is {value!r}; it must be {right}")
