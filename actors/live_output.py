"""A live output: one request's text and times while its tokens arrive. Pure."""

from ..messages import (
    Admitted,
    Delta,
    Ended,
    Finished,
    FinishReason,
    Generate,
    PrefixAccount,
    Timings,
    Usage,
)
from .text.output import OutputText
from .text.tokenizer import Tokenizer


class LiveOutput:
    """Turns tokens into deltas, and decides how the output ended.

    `time_ns` is always that of the message that brought the news.
    """

    def __init__(self, request: Generate, tokenizer: Tokenizer, time_ns: int) -> None:
        self.request = request
        self.preemptions = 0
        self._text = OutputText(tokenizer, request.params)
        self._cached_tokens = 0
        self._account: PrefixAccount | None = None
        self._num_tokens = 0
        self._arrived_ns = time_ns
        self._admitted_ns: int | None = None
        self._first_ns: int | None = None
        self._last_ns = time_ns

    def admit(self, admitted: Admitted) -> None:
        self._admitted_ns = admitted.time_ns
        self._cached_tokens = admitted.cached_tokens
        self._account = admitted.account

    def push(self, token_id: int, time_ns: int) -> Delta:
        """The next token; the delta is the last one if a stop string matched."""
        text = self._take(token_id, time_ns)
        if self._text.matched is not None:
            return self._last(text, (token_id,), FinishReason.STOP, self._text.matched, time_ns)
        return Delta(self.request.request_id, 0, text, (token_id,))

    def end(self, ended: Ended, token_ids: list[int], time_ns: int) -> Delta:
        """The Scheduler is done after these last tokens: the last delta.

        A stop string that they complete comes before whatever ended the sequence after it.
        """
        text = ""
        shown = len(token_ids) - (ended.stop_token_id is not None)
        for count, token_id in enumerate(token_ids, start=1):
            if count > shown:  # a final EOS or stop id has no text
                self._count(time_ns)
                break
            text += self._take(token_id, time_ns)
            if self._text.matched is not None:
                return self._stopped(text, token_ids[:count], time_ns)
        text += self._text.finish()
        if self._text.matched is not None:
            return self._stopped(text, token_ids, time_ns)
        return self._last(text, tuple(token_ids), ended.reason, self._stop_reason(ended), time_ns)

    def finished(self, delta: Delta) -> Finished:
        """The record of a request whose last delta this is."""
        assert delta.finish_reason is not None
        assert delta.usage is not None
        assert delta.timings is not None
        return Finished(
            self.request.serial,
            self.request.request_id,
            delta.finish_reason,
            delta.stop_reason,
            delta.usage,
            delta.timings,
        )

    def _take(self, token_id: int, time_ns: int) -> str:
        self._count(time_ns)
        return self._text.push(token_id)

    def _count(self, time_ns: int) -> None:
        self._num_tokens += 1
        self._last_ns = time_ns
        if self._first_ns is None:
            self._first_ns = time_ns

    def _stop_reason(self, ended: Ended) -> int | str | None:
        """A stop id the caller asked for, or what went wrong; an EOS needs no further reason."""
        if ended.error is not None:
            return ended.error
        is_asked_for = ended.stop_token_id in self.request.params.stop_token_ids
        return ended.stop_token_id if is_asked_for else None

    def _stopped(self, text: str, token_ids: list[int], time_ns: int) -> Delta:
        return self._last(text, tuple(token_ids), FinishReason.STOP, self._text.matched, time_ns)

    def _last(
        self,
        text: str,
        token_ids: tuple[int, ...],
        reason: FinishReason,
        stop_reason: int | str | None,
        time_ns: int,
    ) -> Delta:
        usage = Usage(
            len(self.request.prompt), self._num_tokens, self._cached_tokens, self._account
        )
        timings = self._timings(time_ns)
        return Delta(
            self.request.request_id, 0, text, token_ids, reason, stop_reason, usage, timings
        )

    def _timings(self, now_ns: int) -> Timings:
        admitted_ns = now_ns if self._admitted_ns is None else self._admitted_ns
        first_ns = self._first_ns
        return Timings(
            queue_s=(admitted_ns - self._arrived_ns) / 1e9,
            ttft_s=None if first_ns is None else (first_ns - self._arrived_ns) / 1e9,
            decode_s=0.0 if first_ns is None else (self._last_ns - first_ns) / 1e9,
            total_s=(now_ns - self._arrived_ns) / 1e9,
            preemptions=self.preemptions,
        )
