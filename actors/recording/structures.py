"""Structured requests of a recording: replaying them takes the masks that a tokenizer gives."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from ...messages import ConfigError, DecodeError, Generate, Message
from ..batching import Grammars
from ..grammars import BACKENDS, StructuredGrammars
from ..offload import offload_to_thread
from ..text.tokenizer import Tokenizer
from .privacy import Tokens
from .reading import Recording


def has_structures(recording: Recording) -> bool:
    """Whether any request has one, or one that was live as it begins."""
    told = (envelope.message for heard in recording.turns for envelope in heard.turn.envelopes)
    return any(
        isinstance(message, Generate) and message.grammar is not None
        for message in chain(told, _messages_in(recording.state))
    )


def _messages_in(state: Any) -> Iterator[Message]:
    match state:
        case [str() as name, message] if name == "message":  # an array would be compared otherwise
            yield message
        case list():
            for part in state:
                yield from _messages_in(part)
        case dict():
            yield from _messages_in(list(state.values()))


def grammars_for(recording: Recording, model: str | None) -> Grammars | None:
    """What a recorded engine followed, made from its model's tokenizer alone; None where nobody
    asked for a structure. Raises DecodeError where it was not recorded, ConfigError where the
    tokenizer is missing, ModelError where there is no such model."""
    header = recording.header
    if not has_structures(recording):
        return None
    if header.tokens != Tokens.KEPT:
        raise DecodeError(
            "the recording has requests with a structured output, and what they had to follow was "
            "left out with the tokens; it explains and draws, and cannot be replayed"
        )
    tokenizer = _tokenizer(header.device, header.model, model)
    return StructuredGrammars(
        tokenizer,
        vocab_size=header.vocab_size,
        eos_token_ids={*header.eos_token_ids, *tokenizer.eos_token_ids},
        offload=offload_to_thread,
        make_backend=BACKENDS[header.grammar_backend],
    )


def _tokenizer(device: str, recorded: str, model: str | None) -> Tokenizer:
    if device == "simulated":
        from ..text.toy import ToyTokenizer

        return ToyTokenizer()
    if model is None:
        raise ConfigError(
            "the recording has requests with a structured output; name the model that they were "
            f"asked of, {recorded}, with --model: its tokenizer is needed, not its weights"
        )
    from ...gpu.loading.resolve import resolve_model
    from ..text.loading import load_tokenizer

    return load_tokenizer(resolve_model(model))
