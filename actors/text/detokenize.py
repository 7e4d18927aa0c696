"""Token ids to text, one token at a time, so that the pieces join to the full decode.

The prompt plays no part: the text of an output is the decode of the output's own ids, so none of
the prompt's text can reappear in it. Pure: no awaits, no clock, no input or output.
"""

from codecs import utf_8_decode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_HELD = 64  # ids whose text waits for what comes after them


class IncrementalDetokenizer(Protocol):
    """Turns the ids of one output into text as they come; it never raises."""

    def push(self, token_id: int) -> str:
        """Take the next id and return the text that is certain by now."""

    def flush(self) -> str:
        """Return what was held back, as the full decode shows it at the end of the text."""


class ByteDetokenizer:
    """For vocabularies in which a token is a run of bytes: one table look-up per token.

    Bytes that may still become a character wait; those that no longer can become U+FFFD.
    """

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = pieces  # has an entry for every id, empty for what is not shown
        self._unfinished = b""  # the first bytes of a character

    def push(self, token_id: int) -> str:
        piece = self._unfinished + self._pieces[token_id]
        text, used = utf_8_decode(piece, "replace", False)
        self._unfinished = piece[used:]
        return text

    def flush(self) -> str:
        text = self._unfinished.decode("utf-8", "replace")
        self._unfinished = b""
        return text


class WindowDetokenizer:
    """For every other vocabulary: decodes a short window and returns what the last id added.

    It holds text back while the window ends in an unfinished character, and while it ends in a
    byte token, because a decoder with byte fallback judges a run of byte tokens as a whole. The
    window always begins where a shown piece begins, so that it decodes as it does in the whole.
    A run that grows long is shown as far as its characters are whole: only if it then turns out to
    be no text at all, its beginning is not what the full decode makes of it.

    The library's own DecodeStream is no help: it has no end to flush, and over ids at random it
    raises or differs from the full decode once a run of byte tokens is no text.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        hidden: Collection[int],
        byte_tokens: Collection[int],
    ) -> None:
        self._decode = decode
        self._hidden = hidden  # ids that are not shown: they never enter the window
        self._byte_tokens = byte_tokens
        self._window: list[int] = []
        self._num_shown = 0  # ids at the start of the window whose text has been returned
        self._shown = ""  # the decode of those ids

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._window.append(token_id)
        if len(self._window) - self._num_shown > MAX_HELD:
            return self._show_whole_characters()
        if token_id in self._byte_tokens:
            return ""
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._shown):
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._decode(self._window)) if self._window else ""

    def _show_whole_characters(self) -> str:
        for num_kept in range(4):  # a character has four bytes at most
            text = self._decode(self._window[: len(self._window) - num_kept])
            if not text.endswith(REPLACEMENT):
                return self._advance(text, num_kept)
        return self.flush()

    def _advance(self, text: str, num_kept: int = 0) -> str:
        """Return what `text`, the decode of all but the last ids, adds; the window begins there."""
        added = text[len(self._shown) :]
        end = len(self._window) - num_kept
        shown, kept = self._window[self._num_shown : end], self._window[end:]
        self._num_shown = len(shown)
        self._shown = self._decode(shown)
        self._window = shown + kept
        return added
