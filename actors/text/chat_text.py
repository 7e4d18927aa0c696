"""The text of one answer in a chat: decoded, its parts told apart, its stop strings found. Pure.

Stop strings are looked for in what the user sees: not in reasoning, not in calls of tools, not in
the space next to a marker, and not across a part of another kind.
"""

from collections.abc import Iterable, Iterator, Sequence

from ...messages import AnswerPart, ChatFormat, SamplingParams, TextDelta
from .answer_parser import AnswerParser
from .markers import MarkedText, Piece
from .stops import StopMatcher
from .tokenizer import Tokenizer


class ChatText:
    """Turns the ids of one answer into parts, and says when a stop string ended it.

    The final EOS or stop id is not pushed: it has no text. Stop strings count behind the first
    `min_tokens` tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, chat: ChatFormat, id_prefix: str
    ) -> None:
        self._parser = AnswerParser(chat, id_prefix)
        self._marked = MarkedText(
            tokenizer, self._parser.markers, skip_special_tokens=params.skip_special_tokens
        )
        self._matcher: StopMatcher | None = None
        if params.stop:
            self._matcher = StopMatcher(
                params.stop, include_in_output=params.include_stop_str_in_output
            )
        self._tokens_before_stops = params.min_tokens if params.stop else 0
        self._parts: list[AnswerPart] = []

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text: look after each `take`, and after `finish`."""
        return None if self._matcher is None else self._matcher.matched

    def take(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """The text of the next ids, and how many of them it took: to where a stop string ended."""
        sources: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            sources.append(self._push(token_id))
            if self.matched is not None:
                return "".join(sources), count
            if self._tokens_before_stops > 0:
                self._tokens_before_stops -= 1
        return "".join(sources), len(token_ids)

    def _push(self, token_id: int) -> str:
        pieces = self._marked.push(token_id)
        if self._matcher is None and len(pieces) == 1 and self._parser.is_plain:
            text, marker = pieces[0]
            if marker is None:  # as with most tokens
                self._parts.append(TextDelta(text, text))
                return text
        return self._keep(self._shown(pieces))

    def finish(self) -> str:
        """Return everything held back; call it once, when no more ids will come."""
        source = self._keep(self._shown(self._marked.finish()))
        source += self._keep(self._visible(self._parser.finish()))
        return source + self._keep(self._let_go())

    def take_parts(self) -> tuple[AnswerPart, ...]:
        """The parts of all text returned since the last call."""
        parts, self._parts = self._parts, []
        return tuple(parts)

    def _keep(self, parts: Iterable[AnswerPart]) -> str:
        """Note the parts, and return their text as the model wrote it."""
        kept = list(parts)
        self._parts += kept
        return "".join([part.source for part in kept])

    def _shown(self, pieces: Iterable[Piece]) -> Iterator[AnswerPart]:
        for piece in pieces:
            yield from self._visible(self._parser.push(piece))

    def _visible(self, parts: Iterable[AnswerPart]) -> Iterator[AnswerPart]:
        """The parts up to a stop string."""
        for part in parts:
            if self.matched is not None:
                return
            if isinstance(part, TextDelta) and part.text:
                yield from self._before_stop(part)
            else:
                yield from self._let_go()
                yield part

    def _before_stop(self, part: TextDelta) -> Iterator[AnswerPart]:
        if self._matcher is None or self._tokens_before_stops > 0:
            yield part
            return
        shown = self._matcher.push(part.text)
        if shown:
            yield TextDelta(shown, shown)

    def _let_go(self) -> Iterator[AnswerPart]:
        held = "" if self._matcher is None else self._matcher.flush()
        if held:
            yield TextDelta(held, held)
