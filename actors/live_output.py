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
from .text.output import output_text
from .text.tokenizer import Tokenizer
from .token_gaps import TokenGaps


class LiveOutput:
    """Turns tokens into deltas, and decides how the output ended.

    News arrives with the time of the message that brought it, and is kept until it is taken: what
    has arrived meanwhile comes as one delta.
    """

    def __init__(self, request: Generate, tokenizer: Tokenizer, time_ns: int) -> None:
        self.request = request
        self.preemptions = 0
        self.ended: Ended | None = None
        self.token_ids: list[int] = []  # arrived and not taken
        self._times_ns: list[int] = []  # when each of them arrived
        self._text = output_text(tokenizer, request)
        self._cached_tokens = 0
        self._account: PrefixAccount | None = None
        self._gaps = TokenGaps()
        self._num_tokens = 0
        self._arrived_ns = time_ns
        self._admitted_ns: int | None = None
        self._first_ns: int | None = None
        self._last_ns = time_ns
        self._ended_ns = time_ns

    def admit(self, admitted: Admitted) -> None:
        self._admitted_ns = admitted.time_ns
        self._cached_tokens = admitted.cached_tokens
        self._account = admitted.account

    def add(self, token_id: int, time_ns: int) -> None:
        """The next token has arrived."""
        self.token_ids.append(token_id)
        self._times_ns.append(time_ns)

    def end(self, ended: Ended, time_ns: int) -> None:
        """The Scheduler is done with it after the tokens that have arrived."""
        self.ended = ended
        self._ended_ns = time_ns

    def take(self) -> Delta:
        """All news as one delta, which is the last one if the sequence ended or a stop string
        matched: that comes before whatever ended the sequence after it."""
        token_ids, times_ns = self.token_ids, self._times_ns
        self.token_ids, self._times_ns = [], []
        text, count = self._text.take(self._shown(token_ids))
        if self._text.matched is not None:
            self._count(times_ns[:count])
            return self._stopped(text, token_ids[:count], times_ns[count - 1])
        self._count(times_ns)
        ended = self.ended
        if ended is None:
            parts = self._text.take_parts()
            return Delta(
                self.request.request_id, self.request.index, text, tuple(token_ids), parts=parts
            )
        text += self._text.finish()
        if self._text.matched is not None:
            return self._stopped(text, token_ids, self._ended_ns)
        return self._last(
            text, tuple(token_ids), ended.reason, self._stop_reason(ended), self._ended_ns
        )

    def _shown(self, token_ids: list[int]) -> list[int]:
        """A final EOS or stop id has no text."""
        if self.ended is not None and self.ended.stop_token_id is not None:
            return token_ids[:-1]
        return token_ids

    def finished(self, delta: Delta) -> Finished:
        """The record of a request whose last delta this is."""
        assert delta.finish_reason is not None
        assert delta.usage is not None
        assert delta.timings is not None
        return Finished(
            self.request.serial,
            self.request.request_id,
            self.request.index,
            delta.finish_reason,
            delta.stop_reason,
            delta.usage,
            delta.timings,
        )

    def _count(self, times_ns: list[int]) -> None:
        if not times_ns:
            return
        self._num_tokens += len(times_ns)
        self._gaps.add(times_ns)
        self._last_ns = times_ns[-1]
        if self._first_ns is None:
            self._first_ns = times_ns[0]

    def _stop_reason(self, ended: Ended) -> int | str | None:
        """A stop id the caller asked for, what went wrong, or `max_tokens` where a grammar was
        brought to an end because of it; an EOS needs no further reason."""
        if ended.error is not None:
            return ended.error
        if ended.is_steered:
            return "max_tokens"
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
            self.request.request_id,
            self.request.index,
            text,
            token_ids,
            reason,
            stop_reason,
            usage,
            timings,
            self._text.take_parts(),
        )

    def _timings(self, now_ns: int) -> Timings:
        admitted_ns = now_ns if self._admitted_ns is None else self._admitted_ns
        first_ns = self._first_ns
        gap_p50_s, gap_p99_s = self._gaps.percentile_s(50, 99)
        return Timings(
            queue_s=(admitted_ns - self._arrived_ns) / 1e9,
            ttft_s=None if first_ns is None else (first_ns - self._arrived_ns) / 1e9,
            decode_s=0.0 if first_ns is None else (self._last_ns - first_ns) / 1e9,
            total_s=(now_ns - self._arrived_ns) / 1e9,
            preemptions=self.preemptions,
            gap_p50_s=gap_p50_s,
            gap_p99_s=gap_p99_s,
        )
