"""Grammars of structured requests: compiled, followed, and brought to an end in time."""

from .backend import GrammarBackend, Matcher
from .service import GrammarService, StructuredGrammars
from .tools import BACKENDS

__all__ = ["BACKENDS", "GrammarBackend", "GrammarService", "Matcher", "StructuredGrammars"]
