"""Output streams: where the callers wait for their deltas."""

import asyncio
from itertools import chain

from ..messages import Delta, EngineDead, joined_parts


class OutputStream:
    """The deltas of one request, for one reader.

    Pushing never waits: what the reader has not taken yet is merged into one delta, so a slow
    reader holds up nobody and loses nothing.
    """

    def __init__(self, serial: int, request_id: str) -> None:
        self.serial = serial
        self.request_id = request_id
        self.opened_ns = 0  # on the engine's clock
        self.is_given_up = False
        self._pending: list[Delta] = []
        self._waiter: asyncio.Future[None] | None = None  # its reader waits
        self._failure: EngineDead | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the last delta, or a failure, has been pushed."""
        return self._is_over

    def push(self, delta: Delta) -> None:
        self._pending.append(delta)
        self._is_over = delta.finish_reason is not None
        self._wake()

    def fail(self, failure: EngineDead) -> None:
        self._failure = failure
        self._is_over = True
        self._wake()

    async def next(self) -> Delta:
        """Wait for the next delta. Raises EngineDead when there will be none."""
        while not self._pending:
            if self._failure is not None:  # one each: an exception keeps the trace of every raise
                raise EngineDead(str(self._failure)) from self._failure.__cause__
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pending, self._pending = self._pending, []
        return pending[0] if len(pending) == 1 else _merged(pending)

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
        self._streams: dict[int, OutputStream] = {}
        self._serials: dict[str, int] = {}
        self._dead: EngineDead | None = None
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.finished = 0  # requests whose last delta was pushed

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, serial: int, request_id: str) -> OutputStream:
        """A new live request; its id must not be that of another. Raises EngineDead."""
        self.check_alive()
        assert request_id not in self._serials
        self._serials[request_id] = serial
        stream = self._streams[serial] = OutputStream(serial, request_id)
        self._is_empty.clear()
        return stream

    async def wait_empty(self) -> None:
        """Wait until no request is live. Raises EngineDead when the rest will never end."""
        await self._is_empty.wait()
        self.check_alive()

    def give_up(self, serial: int) -> None:
        """Somebody gave up on it, perhaps before the Scheduler knows it."""
        if serial in self._streams:
            self._streams[serial].is_given_up = True

    def discard(self, serial: int) -> None:
        """The request was refused after all."""
        stream = self._streams.pop(serial, None)
        if stream is not None:
            del self._serials[stream.request_id]
            self._note_empty()

    def check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDead(str(self._dead)) from self._dead

    def serial_of(self, request_id: str) -> int | None:
        return self._serials.get(request_id)

    def push(self, serial: int, delta: Delta) -> None:
        """Deliver a delta; the one with a finish reason ends the stream."""
        stream = self._streams[serial]
        stream.push(delta)
        if stream.is_over:
            del self._streams[serial], self._serials[stream.request_id]
            self.finished += 1
            self._note_empty()

    def fail_all(self, failure: EngineDead) -> None:
        """No request will finish any more, and no new one can begin."""
        self._dead = failure
        for stream in self._streams.values():
            stream.fail(failure)
        self._streams.clear()
        self._serials.clear()
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._streams:
            self._is_empty.set()
