"""The Detokenizer actor: text, stop strings, the final reason and usage of every request."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from ..messages import Finished, Generate, StopMatched, TokensReady
from .actor import Actor, Address, Mailbox
from .journal import Turn
from .live_logprobs import LiveLogprobs, asks, entries
from .live_output import LiveOutput
from .streams import OutputStreams
from .text.token_texts import TokenTexts
from .text.tokenizer import Tokenizer

DetokenizerMessage: TypeAlias = Generate | TokensReady

SLICE = 16  # requests that are shown something before others have their turn


class Detokenizer(Actor[DetokenizerMessage]):
    """Sees every token in order, so a stop string decides before anything later does (rule 26).

    What arrives is noted at once and shown in slices. Between them the Scheduler plans and the
    readers read; a request that could not be shown yet gets more in its next delta, so that many
    streams slow their deltas down but never the device.
    """

    def __init__(
        self,
        mailbox: Mailbox[DetokenizerMessage],
        tokenizer: Tokenizer,
        streams: OutputStreams,
        *,
        scheduler: Address[StopMatched],
        finished: Address[Finished],
        is_scheduler_due: Callable[[], bool],
    ) -> None:
        super().__init__(mailbox)
        self._is_scheduler_due = is_scheduler_due
        self._tokenizer = tokenizer
        self._token_texts = TokenTexts(tokenizer)
        self._streams = streams
        self._scheduler = scheduler
        self._finished = finished
        self._live: dict[int, LiveOutput] = {}
        self._logprobs: dict[int, LiveLogprobs] = {}  # of those that asked
        self._news: deque[LiveOutput] = deque()  # those with something to show, in turn

    async def attend(self) -> None:
        """Take what arrives, and show it slice by slice."""
        await super().attend()
        while self._news:
            await asyncio.sleep(0)
            if self._is_scheduler_due():
                continue  # it comes first: the device may be waiting for it
            _let_threads_run()
            arrived = self._mailbox.drain()
            if arrived is None:
                self._show_slice()
            else:
                self.react(arrived)

    def react(self, turn: Turn[DetokenizerMessage]) -> None:
        for _, time_ns, message in turn.envelopes:
            if isinstance(message, Generate):
                self._live[message.serial] = LiveOutput(message, self._tokenizer, time_ns)
                if asks(message):
                    self._logprobs[message.serial] = LiveLogprobs(message, self._token_texts)
            else:
                self._note(message, time_ns)
        self._show_slice()

    def _note(self, report: TokensReady, time_ns: int) -> None:
        """Unknown serials are those that a stop string has ended here already."""
        live, news = self._live, self._news
        for admitted in report.admitted:
            live[admitted.serial].admit(admitted)
        for preempted in report.preempted:
            if preempted.serial in live:
                live[preempted.serial].preemptions += 1
        columns = (report.serials.tolist(), report.token_ids.tolist())
        for serial, token_id in zip(*columns, strict=True):
            output = live.get(serial)
            if output is not None:
                if not output.token_ids:
                    news.append(output)
                output.add(token_id, time_ns)
        if report.logprobs is not None:
            for serial, position, told, top in entries(report.logprobs):
                if serial in live:
                    self._logprobs[serial].add(position, told, top)
        for ended in report.ended:
            output = live.get(ended.serial)
            if output is not None:
                if not output.token_ids:
                    news.append(output)
                output.end(ended, time_ns)

    def _show_slice(self) -> None:
        for _ in range(min(SLICE, len(self._news))):
            self._show(self._news.popleft())

    def _show(self, live: LiveOutput) -> None:
        serial, delta = live.request.serial, live.take()
        if serial in self._logprobs:
            delta = self._logprobs[serial].tell(delta)
        self._streams.push(serial, delta)
        if delta.finish_reason is not None:
            del self._live[serial]
            self._logprobs.pop(serial, None)
            if live.ended is None:  # the Scheduler does not know yet
                self._scheduler(StopMatched(serial))
            self._finished(live.finished(delta))


def _let_threads_run() -> None:
    """A device's thread needs the interpreter for a moment to hand over a result. While this
    thread is busy, it gets it only if this one sleeps: what is let go of without sleeping is taken
    back before the other wakes."""
    time.sleep(1e-6)
