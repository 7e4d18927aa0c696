"""Grammars of structured requests: compiled, followed, and brought to an end in time."""

from .backend import GrammarBackend, Matcher
from .service import GrammarService, StructuredGrammars

__all__ = ["GrammarBackend", "GrammarService", "Matcher", "StructuredGrammars"]
