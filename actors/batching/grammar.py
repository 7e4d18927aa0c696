"""Grammars: what a structured request may say, token by token. Here are only the seams.

A grammar is not part of a message: messages are values. A Generate carries its text, and the
Batcher opens it by that message, so replaying the same messages opens the same grammars and gives
the same masks.
"""

from collections.abc import Sequence
from typing import Protocol

from ...messages import Generate, Ints


class Grammar(Protocol):
    """Where one sequence stands in its grammar. Pure: its tokens determine it."""

    def accept(self, token_id: int) -> bool:
        """Advance by a token; False where the grammar does not allow it."""
        ...

    def mask(self) -> Ints:
        """What may come next, packed and read-only: bit i % 32 of word i // 32 allows token i.
        # [words]"""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that come next in any case and need not be sampled."""
        ...

    @property
    def cost(self) -> int:
        """How much was looked at for the last token: counted, not timed."""
        ...

    @property
    def is_steered(self) -> bool:
        """Whether it was brought to an end because the tokens ran out."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        ...


class Grammars(Protocol):
    """Opens compiled grammars."""

    def open(self, request: Generate) -> Grammar:
        """A request's grammar at its beginning; its text was compiled before."""
        ...
