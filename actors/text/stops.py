"""Stop strings in a text that arrives in pieces. Pure: no awaits, no clock, no tensors."""

from collections.abc import Sequence


class StopMatcher:
    """Finds the stop string that is complete first; among those, the longest.

    How the text is cut into pieces makes no difference. Text before the match is always returned,
    and text is held back only while it may be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        self.matched: str | None = None  # the stop string that ended the text
        self._stops = tuple(stops)
        self._include_in_output = include_in_output
        self._beginnings = Beginnings(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece and return the text that can be shown now."""
        if self.matched is not None:
            return ""
        if not self._held and self._beginnings.are_absent(text):
            return text
        text = self._held + text
        found = self._find_first(text)
        if found is not None:
            end, self.matched = found
            self._held = ""
            return text[:end] if self._include_in_output else text[: end - len(self.matched)]
        certain = self._beginnings.certain(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return the held-back tail: the text ended without completing a stop string."""
        held, self._held = self._held, ""
        return held

    def _find_first(self, text: str) -> tuple[int, str] | None:
        """Return where the match ends and the stop string, or None."""
        best: tuple[int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or end < best[0] or (end == best[0] and len(stop) > len(best[1])):
                best = end, stop
        return best


class Beginnings:
    """Finds where the end of a text may be the beginning of one of some strings."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = tuple(wanted)
        self._first_characters = frozenset(one[0] for one in wanted)
        self._longest = max((len(one) - 1 for one in wanted), default=0)

    def are_absent(self, text: str) -> bool:
        """Whether none of the strings begins anywhere in a text, as with most pieces."""
        return self._first_characters.isdisjoint(text)

    def certain(self, text: str) -> int:
        """Count the characters before the longest tail that one of the strings begins with."""
        for start in range(max(0, len(text) - self._longest), len(text)):
            if text[start] in self._first_characters:
                tail = text[start:]
                if any(one.startswith(tail) for one in self._wanted):
                    return start
        return len(text)
