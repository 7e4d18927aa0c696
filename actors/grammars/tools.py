"""What is made once for a model, when its first structured request comes."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from ...messages import RequestRejected
from ..text.tokenizer import Tokenizer
from .backend import GrammarBackend
from .completion import Completer
from .vocabulary import TokenBytes, describe

MakeBackend: TypeAlias = Callable[[str | TokenBytes, int, Collection[int]], GrammarBackend]
"""From a tokenizer's description, the number of ids and those of the end of sequence."""


@dataclass(frozen=True, slots=True)
class Tools:
    """A backend, and what finds completions with it."""

    backend: GrammarBackend
    completer: Completer


def make_tools(
    make_backend: MakeBackend, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]
) -> Tools:
    """Takes about a second for a large vocabulary. Raises RequestRejected."""
    num_ids = max(vocab_size, tokenizer.vocab_size)
    backend = make_backend(describe(tokenizer), num_ids, eos_ids)
    return Tools(backend, Completer(backend.pieces()))


def make_llguidance(
    tokens: str | TokenBytes, vocab_size: int, eos_ids: Collection[int]
) -> GrammarBackend:
    """The first backend."""
    try:
        from .llguidance import LlguidanceBackend
    except ImportError as error:
        raise RequestRejected(
            "structured_output needs llguidance: pip install 'stepahead[structured]'"
        ) from error
    return LlguidanceBackend(tokens, vocab_size=vocab_size, eos_token_ids=eos_ids)


def make_xgrammar(
    tokens: str | TokenBytes, vocab_size: int, eos_token_ids: Collection[int]
) -> GrammarBackend:
    """The second backend."""
    try:
        from .xgrammar import XgrammarBackend
    except ImportError as error:
        raise RequestRejected(
            "structured_output with grammar_backend='xgrammar' needs xgrammar: "
            "pip install 'stepahead[xgrammar]'"
        ) from error
    return XgrammarBackend(tokens, vocab_size=vocab_size, eos_token_ids=eos_token_ids)


BACKENDS: dict[str, MakeBackend] = {"llguidance": make_llguidance, "xgrammar": make_xgrammar}
"""By their names in EngineConfig."""
