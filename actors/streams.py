"""Output streams: where the callers wait for their deltas."""

import asyncio
from itertools import chain

from ..messages import Delta, EngineDead, joined_parts


class OutputStream:
    """The deltas of one request, for one reader; of several answers, if it wants them.

    Pushing never waits: what the reader has not taken yet is merged into one delta, so a slow
    reader holds up nobody and loses nothing.
    """

    def __init__(self, serials: range, request_id: str) -> None:
        self.serials = serials  # of its answers, by index
        self.request_id = request_id
        self.opened_ns = 0  # on the engine's clock
        self.is_given_up = False
        self._pending: list[Delta] = []
        self._waiter: asyncio.Future[None] | None = None  # its reader waits
        self._failure: EngineDead | None = None
        self._live = len(serials)  # answers whose last delta has not come

    @property
    def serial(self) -> int:
        """Of its first answer."""
        return self.serials.start

    @property
    def is_over(self) -> bool:
        """Whether the last delta of every answer, or a failure, has been pushed."""
        return self._live == 0

    @property
    def is_read(self) -> bool:
        """Whether nothing more will come."""
        return self.is_over and not self._pending and self._failure is None

    def push(self, delta: Delta) -> None:
        self._pending.append(delta)
        self._live -= delta.finish_reason is not None
        self._wake()

    def fail(self, failure: EngineDead) -> None:
        self._failure = failure
        self._live = 0
        self._wake()

    async def next(self) -> Delta:
        """Wait for the next delta. Raises EngineDead when there will be none."""
        while not self._pending:
            if self._failure is not None:  # one each: an exception keeps the trace of every raise
                raise EngineDead(str(self._failure)) from self._failure.__cause__
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pending, self._pending = self._pending, []
        if len(pending) == 1:
            return pending[0]
        if len(self.serials) > 1:  # the answers take turns
            index = pending[0].index
            self._pending = [delta for delta in pending if delta.index != index]
            pending = [delta for delta in pending if delta.index == index]
        return _merged(pending)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # done: the reader was cancelled
            waiter.set_result(None)


def _merged(deltas: list[Delta]) -> Delta:
    last = deltas[-1]
    return Delta(
        last.request_id,
        last.index,
        "".join(delta.text for delta in deltas),
        tuple(token_id for delta in deltas for token_id in delta.token_ids),
        last.finish_reason,
        last.stop_reason,
        last.usage,
        last.timings,
        joined_parts(part for delta in deltas for part in delta.parts),
        None if last.logprobs is None else tuple(chain(*(d.logprobs or () for d in deltas))),
        next((d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None), None),
    )


class OutputStreams:
    """The streams of all live requests, by serial and by the caller's id."""

    def __init__(self) -> None:
        self._streams: dict[int, OutputStream] = {}  # by the serial of each answer
        self._by_id: dict[str, OutputStream] = {}
        self._dead: EngineDead | None = None
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.finished = 0  # answers whose last delta was pushed
        self.tokens = 0  # that were pushed

    def __len__(self) -> int:
        """Answers that are live: a request has one, unless it wants several."""
        return len(self._streams)

    def open(self, serial: int, request_id: str, count: int = 1) -> OutputStream:
        """A new live request of so many answers, whose serials follow one another; its id must not
        be that of another. Raises EngineDead."""
        self.check_alive()
        assert request_id not in self._by_id
        stream = OutputStream(range(serial, serial + count), request_id)
        self._by_id[request_id] = stream
        self._streams.update(dict.fromkeys(stream.serials, stream))
        self._is_empty.clear()
        return stream

    async def wait_empty(self) -> None:
        """Wait until no request is live. Raises EngineDead when the rest will never end."""
        await self._is_empty.wait()
        self.check_alive()

    def discard(self, stream: OutputStream) -> None:
        """The request was refused after all."""
        if self._by_id.pop(stream.request_id, None) is not None:
            for serial in stream.serials:
                del self._streams[serial]
            self._note_empty()

    def check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDead(str(self._dead)) from self._dead

    def of(self, request_id: str) -> OutputStream | None:
        """The stream of a live request, by its caller's id."""
        return self._by_id.get(request_id)

    def push(self, serial: int, delta: Delta) -> None:
        """Deliver a delta; the last one with a finish reason ends the stream."""
        stream = self._streams[serial]
        stream.push(delta)
        self.tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            del self._streams[serial]
            self.finished += 1
        if stream.is_over:
            del self._by_id[stream.request_id]
            self._note_empty()

    def fail_all(self, failure: EngineDead) -> None:
        """No request will finish any more, and no new one can begin."""
        self._dead = failure
        for stream in self._streams.values():
            stream.fail(failure)
        self._streams.clear()
        self._by_id.clear()
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._streams:
            self._is_empty.set()
