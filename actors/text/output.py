"""The text of one output: its ids decoded, its stop strings found. Pure: no awaits, no clock."""

from ...messages import SamplingParams
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
