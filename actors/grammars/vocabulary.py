"""The tokens of a model as a grammar sees them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...messages import RequestRejected
from ..text.fast_tokenizer import FastTokenizer
from ..text.tokenizer import Tokenizer
from ..text.toy import ToyTokenizer


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """A tokenizer that no library describes: the bytes of each id, and the way from text to ids."""

    pieces: Sequence[bytes]
    special_token_ids: Sequence[int]
    encode: Callable[[str], list[int]]


def describe(tokenizer: Tokenizer) -> str | TokenBytes:
    """The tokenizers library's description of a tokenizer, or its tokens as bytes.

    Raises RequestRejected for one that can only be asked for whole texts.
    """
    if isinstance(tokenizer, FastTokenizer):
        return tokenizer.description()
    if isinstance(tokenizer, ToyTokenizer):
        return TokenBytes(
            [tokenizer.piece(token_id) for token_id in range(tokenizer.vocab_size)],
            sorted(tokenizer.special_token_ids),
            tokenizer.encode,
        )
    raise RequestRejected(
        "structured_output cannot be had with this model: its tokenizer does not tell which bytes "
        "its tokens stand for"
    )
