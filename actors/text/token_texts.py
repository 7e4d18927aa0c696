"""What single tokens are called, for those who look at logprobs."""

from .tokenizer import Tokenizer


class TokenTexts:
    """The text of each token by itself; what was asked once is remembered.

    A token that is part of a character only shows U+FFFD; special tokens show their names.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}  # at most as many as the vocabulary has

    def of(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if text is None:
            text = self._tokenizer.decode((token_id,), skip_special_tokens=False)
            self._texts[token_id] = text
        return text
