"""The Detokenizer actor: text, stop strings, the final reason and usage of every request."""

from typing import TypeAlias

from ..messages import Delta, Finished, Generate, StopMatched, TokensReady
from .actor import Actor, Address, Mailbox
from .journal import Turn
from .live_output import LiveOutput
from .streams import OutputStreams
from .text.tokenizer import Tokenizer

DetokenizerMessage: TypeAlias = Generate | TokensReady


class Detokenizer(Actor[DetokenizerMessage]):
    """Sees every token in order, so a stop string decides before anything later does (rule 26)."""

    def __init__(
        self,
        mailbox: Mailbox[DetokenizerMessage],
        tokenizer: Tokenizer,
        streams: OutputStreams,
        *,
        scheduler: Address[StopMatched],
        finished: Address[Finished],
    ) -> None:
        super().__init__(mailbox)
        self._tokenizer = tokenizer
        self._streams = streams
        self._scheduler = scheduler
        self._finished = finished
        self._live: dict[int, LiveOutput] = {}

    def react(self, turn: Turn[DetokenizerMessage]) -> None:
        for _, time_ns, message in turn.envelopes:
            if isinstance(message, Generate):
                self._live[message.serial] = LiveOutput(message, self._tokenizer, time_ns)
            else:
                self._apply(message, time_ns)

    def _apply(self, report: TokensReady, time_ns: int) -> None:
        for admitted in report.admitted:
            self._live[admitted.serial].admit(admitted)
        for preempted in report.preempted:
            if preempted.serial in self._live:  # unless a stop string has ended it
                self._live[preempted.serial].preemptions += 1
        last_tokens: dict[int, list[int]] = {ended.serial: [] for ended in report.ended}
        columns = (report.serials.tolist(), report.token_ids.tolist())
        for serial, token_id in zip(*columns, strict=True):
            if serial in last_tokens:
                last_tokens[serial].append(token_id)
            elif serial in self._live:
                self._show(self._live[serial], token_id, time_ns)
        for ended in report.ended:
            live = self._live.get(ended.serial)
            if live is not None:
                self._deliver(live, live.end(ended, last_tokens[ended.serial], time_ns))

    def _show(self, live: LiveOutput, token_id: int, time_ns: int) -> None:
        delta = live.push(token_id, time_ns)
        self._deliver(live, delta)
        if delta.finish_reason is not None:  # the Scheduler does not know yet
            self._scheduler(StopMatched(live.request.serial))

    def _deliver(self, live: LiveOutput, delta: Delta) -> None:
        self._streams.push(live.request.serial, delta)
        if delta.finish_reason is not None:
            del self._live[live.request.serial]
            self._finished(live.finished(delta))
