"""What is asked of a library that follows grammars: compile one, and match tokens with it."""

import re
from collections.abc import Sequence
from typing import Protocol, Self

from ...messages import Ints, RequestRejected, StructuredOutput


class Matcher(Protocol):
    """Where a text stands in its grammar; it knows the end of sequence, but not as a token.

    An answer is followed with `mask` and `accept`, and is over where it `may_end` and its mask is
    empty. So that it ends in time, copies look ahead; what could `follow` is asked thousands of
    times, and libraries tell it faster than a copy that accepts. What is `forced` shows in no mask,
    which allows every spelling of the same bytes.
    """

    def mask(self) -> Ints:
        """The text tokens that may come next, packed 32 to a word.  # [words]"""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by a token; False where the grammar does not allow it."""
        ...

    def forced(self) -> list[int]:
        """The tokens that come next in any case, as the tokenizer would write them."""
        ...

    def follow(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could come next, and one more where they would make the text
        whole; it stays where it is."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the text is whole as it is."""
        ...

    def copy(self) -> Self:
        """Another matcher that stands where this one does."""
        ...


class GrammarBackend(Protocol):
    """What a library is to the engine: it compiles for one tokenizer, whose tokens it tells."""

    def compile(self, structure: StructuredOutput) -> Matcher:
        """A matcher at the beginning; on any thread. Raises RequestRejected saying what is
        wrong."""
        ...

    def pieces(self) -> list[bytes]:
        """The bytes of each token; none for special tokens."""
        ...


def refused(structure: StructuredOutput, reason: str) -> RequestRejected:
    """The library's own words, on one line."""
    fault = re.search(r"^error: (.*)$", reason, re.MULTILINE)  # below a drawing of an expression
    words = fault[1] if fault is not None else " ".join(reason.split())
    if len(words) > 300:
        words = words[:297] + "..."
    return RequestRejected(f"structured_output has a {structure.kind} that is refused: {words}")
