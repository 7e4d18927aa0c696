"""The text of one output: its ids decoded, its stop strings found. Pure: no awaits, no clock."""

from collections.abc import Sequence

from ...messages import AnswerPart, Generate, SamplingParams
from .chat_text import ChatText
from .stops import StopMatcher
from .tokenizer import Tokenizer


class OutputText:
    """Turns the ids of one output into the text to show, and says when a stop string ended it.

    The final EOS or stop id is not pushed: it has no text. The text of the first `min_tokens`
    tokens is shown as it comes and cannot be part of a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=params.skip_special_tokens)
        self._matcher: StopMatcher | None = None
        if params.stop:
            self._matcher = StopMatcher(
                params.stop, include_in_output=params.include_stop_str_in_output
            )
        self._tokens_before_stops = params.min_tokens  # still to come before stop strings count

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text: look after each `push`, and after `finish`."""
        return None if self._matcher is None else self._matcher.matched

    def take(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """The text of the next ids, and how many of them it took: to where a stop string ended."""
        if self._matcher is None:
            push = self._detokenizer.push
            if len(token_ids) == 1:
                return push(token_ids[0]), 1
            return "".join(map(push, token_ids)), len(token_ids)
        pieces: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            pieces.append(self.push(token_id))
            if self._matcher.matched is not None:
                return "".join(pieces), count
        return "".join(pieces), len(token_ids)

    def take_parts(self) -> tuple[AnswerPart, ...]:
        """A text that is no chat has no parts."""
        return ()

    def push(self, token_id: int) -> str:
        """Take the next id and return the text to show now; nothing once a stop string matched."""
        text = self._detokenizer.push(token_id)
        if self._matcher is None:
            return text
        if self._tokens_before_stops > 0:
            self._tokens_before_stops -= 1
            return text
        return self._matcher.push(text)

    def finish(self) -> str:
        """Return everything held back; call it once, when no more ids will come.

        An unfinished character that is shown now may still complete a stop string.
        """
        text = self._detokenizer.flush()
        if self._matcher is None:
            return text
        return self._matcher.push(text) + self._matcher.flush()


class NoText:
    """For an output whose ids are all that is wanted."""

    matched = None

    def take(self, token_ids: Sequence[int]) -> tuple[str, int]:
        return "", len(token_ids)

    def finish(self) -> str:
        return ""

    def take_parts(self) -> tuple[AnswerPart, ...]:
        return ()


def output_text(tokenizer: Tokenizer, request: Generate) -> OutputText | ChatText | NoText:
    """The text of a request's output, in parts if it is a chat."""
    if not request.params.detokenize:
        return NoText()
    if request.chat is None:
        return OutputText(tokenizer, request.params)
    id_prefix = f"{request.serial}/{request.seed}"
    return ChatText(tokenizer, request.params, request.chat, id_prefix)
