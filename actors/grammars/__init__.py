"""Grammars of structured requests: compiled, followed, and brought to an end in time."""

from .backend import GrammarBackend, Matcher
#X

__all__ = ["GrammarBackend", "Matcher"]
