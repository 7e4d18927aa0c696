"""What single tokens are called, for those who look at logprobs."""

from .tokenizer import Tokenizer


class TokenTexts:
    """The text and the bytes of each token by itself; what was asked once is remembered.

    A token that is part of a character only shows U+FFFD; special tokens show their names.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes]] = {}  # at most as many as the vocabulary has

    def of(self, token_id: int) -> tuple[str, bytes]:
        known = self._known.get(token_id)
        if known is None:
            piece = self._tokenizer.token_bytes(token_id)
            known = self._known[token_id] = piece.decode("utf-8", "replace"), piece
        return known
