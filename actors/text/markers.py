"""Markers in a text that arrives in pieces. Pure: no awaits, no clock.

Where the vocabulary has a token for a marker, only that token is one: the same letters spelled by
other tokens are text. Other markers are found in the text.
"""

from collections.abc import Collection, Iterator, Sequence

from .detokenize import IncrementalDetokenizer
from .stops import Beginnings
from .tokenizer import Tokenizer

Piece = tuple[str, str | None]
"""Some text and None, or how a marker was shown (empty when it is not) and the marker."""


class MarkedText:
    """Turns the ids of one output into text and markers, in their order.

    A marker that is not shown ends a character: what is unfinished before it comes as the full
    decode shows it at the end of a text.
    """

    def __init__(
        self, tokenizer: Tokenizer, markers: Collection[str], *, skip_special_tokens: bool
    ) -> None:
        self._detokenizer: IncrementalDetokenizer = tokenizer.detokenizer(
            skip_special_tokens=skip_special_tokens
        )
        added = tokenizer.added_tokens
        self._by_id = {added[marker]: marker for marker in markers if marker in added}
        self._by_text = tuple(marker for marker in markers if marker not in added)
        self._beginnings = Beginnings(self._by_text)
        self._held = ""  # may be the beginning of a marker

    def push(self, token_id: int) -> Sequence[Piece]:
        """Take the next id and return what is certain by now."""
        text = self._detokenizer.push(token_id)
        marker = self._by_id.get(token_id)
        if marker is not None:
            return [*self._before(text, marker), (self._shown(text, marker), marker)]
        if not self._held and self._beginnings.are_absent(text):
            return ((text, None),) if text else ()
        return list(self._search(text))

    def finish(self) -> list[Piece]:
        """Return what was held back; call it once, when no more ids will come."""
        pieces = list(self._search(self._detokenizer.flush()))
        return [*pieces, *self._let_go()]

    def _shown(self, text: str, marker: str) -> str:
        return marker if text.endswith(marker) else ""

    def _before(self, text: str, marker: str) -> list[Piece]:
        """What stands before a marker that has its own token."""
        before = text[: -len(marker)] if text.endswith(marker) else text + self._detokenizer.flush()
        return [*self._search(before), *self._let_go()]

    def _let_go(self) -> list[Piece]:
        held, self._held = self._held, ""
        return [(held, None)] if held else []

    def _search(self, text: str) -> Iterator[Piece]:
        """Cut what has arrived at its markers; hold back what may be the beginning of one."""
        text = self._held + text
        self._held = ""
        while found := self._first(text):
            start, marker = found
            if start:
                yield text[:start], None
            yield marker, marker
            text = text[start + len(marker) :]
        certain = self._beginnings.certain(text)
        self._held = text[certain:]
        if certain:
            yield text[:certain], None

    def _first(self, text: str) -> tuple[int, str] | None:
        places = [(text.find(marker), marker) for marker in self._by_text]
        return min((place for place in places if place[0] >= 0), default=None)
