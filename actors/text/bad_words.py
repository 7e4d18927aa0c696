"""The token ids of words that an answer must not say, in every form that they may take."""

from collections.abc import Iterable, Sequence

from ...messages import RequestRejected
from .tokenizer import Tokenizer

_BEFORE = "\n"  # after it a word stands by itself, also where a tokenizer begins texts with a space


def bad_word_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word without and with a space before it. Raises RequestRejected for a word that has no
    ids."""
    found: dict[tuple[int, ...], None] = {}
    before = tokenizer.encode_rest(_BEFORE)
    for word in words:
        bare = word.lstrip(" ") or word
        forms = [
            form
            for text in (bare, " " + bare)
            for form in (
                tokenizer.encode_rest(text),
                _behind(before, tokenizer.encode_rest(_BEFORE + text)),
            )
            if form
        ]
        if not forms:
            raise RequestRejected(f"the bad word {word!r} has no token ids in this model")
        found.update(dict.fromkeys(map(tuple, forms)))
    return tuple(found)


def _behind(before: Sequence[int], token_ids: Sequence[int]) -> Sequence[int]:
    is_apart = token_ids[: len(before)] == before
    return token_ids[len(before) :] if is_apart else ()
