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


class MarkerFinder:
    """Cuts a text that arrives in pieces at its markers."""

    def __init__(self, markers: Collection[str]) -> None:
        self._markers = tuple(markers)
        self._beginnings = Beginnings(self._markers)
        self._held = ""  # may be the beginning of a marker

    def push(self, text: str) -> Sequence[Piece]:
        """Take the next text and return what is certain by now."""
        if not self._held and self._beginnings.are_absent(text):
            return ((text, None),) if text else ()
        return list(self._cut(self._held + text))

    def finish(self) -> list[Piece]:
        """Return what was held back: no marker goes on from it."""
        held, self._held = self._held, ""
        return [(held, None)] if held else []

    def _cut(self, text: str) -> Iterator[Piece]:
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
        places = [(text.find(marker), marker) for marker in self._markers]
        return min((place for place in places if place[0] >= 0), default=None)


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
        self._by_text = MarkerFinder([marker for marker in markers if marker not in added])

    def push(self, token_id: int) -> Sequence[Piece]:
        """Take the next id and return what is certain by now."""
        text = self._detokenizer.push(token_id)
        marker = self._by_id.get(token_id)
        if marker is None:
            return self._by_text.push(text)
        if text.endswith(marker):
            return [*self._before(text.removesuffix(marker)), (marker, marker)]
        return [*self._before(text + self._detokenizer.flush()), ("", marker)]

    def finish(self) -> list[Piece]:
        """Return what was held back; call it once, when no more ids will come."""
        return self._before(self._detokenizer.flush())

    def _before(self, text: str) -> list[Piece]:
        """What stands before a marker that has its own token, or before the end."""
        return [*self._by_text.push(text), *self._by_text.finish()]
