"""Builds SentencePiece-style BPE from a GGUF vocabulary: scores for merges, byte fallback."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ...messages import ModelError
from .gguf_vocabulary import GgufVocabulary, TokenType

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import decoders, models

_SPACE = "\u2581"  # how a space is written inside a token


def make_sentencepiece(vocabulary: GgufVocabulary) -> "tokenizers.Tokenizer":
    """Return the tokenizer of a file whose model is `llama`."""
    from tokenizers import Tokenizer

    is_gemma = vocabulary.architecture.startswith("gemma")
    adds_space = vocabulary.flag("add_space_prefix")
    if adds_space is None:
        adds_space = not is_gemma
    library = Tokenizer(_make_model(vocabulary, is_gemma))
    _set_space_rule(library, adds_space, doubles_space=vocabulary.architecture == "phi3")
    library.decoder = _make_decoder(adds_space)
    return library


def _make_model(vocabulary: GgufVocabulary, is_gemma: bool) -> "models.BPE":
    from tokenizers import models

    tokens = vocabulary.tokens
    ranks: Sequence[float] | None = vocabulary.scores
    if is_gemma:  # its files spell runs of spaces plainly, and its scores are not the merge order
        tokens = [_SPACE * len(token) if set(token) == {" "} else token for token in tokens]
        ranks = [-float(token_id) for token_id in range(len(tokens))]
    merges = vocabulary.merges
    if merges is None:
        if ranks is None:
            raise ModelError("the file has neither tokenizer.ggml.scores nor tokenizer.ggml.merges")
        merges = merges_from_scores(tokens, ranks)
    unknown = vocabulary.of_type(TokenType.UNKNOWN)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        return models.BPE(
            ids,
            merges,
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    except Exception as error:  # the library raises the bare class
        raise ModelError(f"the tokenizer's merges do not fit its vocabulary: {error}") from error


def _set_space_rule(
    library: "tokenizers.Tokenizer", adds_space: bool, *, doubles_space: bool
) -> None:
    """Write spaces as tokens hold them, and put one in front of a text if the file says so.

    A text that begins with a space gets a second one only in files made for `doubles_space`.
    """
    from tokenizers import normalizers, pre_tokenizers

    if adds_space and doubles_space:
        library.normalizer = normalizers.Sequence(
            [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
        )
        return
    scheme: Literal["first", "never"] = "first" if adds_space else "never"
    library.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme, split=False)


def _make_decoder(adds_space: bool) -> "decoders.Decoder":
    from tokenizers import decoders

    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(" ", left=1))
    return decoders.Sequence(steps)


def merges_from_scores(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every way to make a token of two others, the best-scored token first.

    Ways to the same score are ordered by the longer left part, then the longer right part, then
    as the tokens stand in the vocabulary.
    """
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    ways: list[tuple[float, int, int, int, str, str]] = []
    for order, (token, score) in enumerate(zip(tokens, scores, strict=True)):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ways.append((-score, -len(left), -len(right), order, left, right))
    ways.sort()
    return [(left, right) for *_, left, right in ways]
