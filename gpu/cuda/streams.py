"""Streams: how device work is queued, copied back and waited for. CUDA's, or threads on the CPU.

A device needs three things of the machine below it: work that runs later, in order; results copied
to the host beside it; and marks to wait for. Behind this seam the same device code runs on the CPU,
where work is late and copies are later still, so that a wait that is missing shows in tests.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from mmap import mmap
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

Work: TypeAlias = Callable[[], None]
Around: TypeAlias = Callable[[], AbstractContextManager[object]]


class Mark(Protocol):
    """A point in queued work."""

    def wait(self) -> None:
        """Wait, without holding the interpreter, until everything before it is done. Raises where
        the machine below is broken; then so does every later mark."""
        ...

    def is_done(self) -> bool:
        """Whether waiting would be over at once. Raises as `wait`."""
        ...


class Streams(Protocol):
    """One stream that computes, and one that copies results to the host."""

    def run(self, work: Work) -> None:
        """Queue work behind all that computes, without gradients. The work must not raise."""
        ...

    def upload(self, words: Tensor) -> Tensor:
        """Queue a copy of host words to the device; what it gives holds them for work that is
        queued later. They must stay as they are until a mark behind this was waited for."""
        ...

    def upload_to(self, target: Tensor, words: Tensor) -> None:
        """The same, to memory of the device that queued work reads."""
        ...

    def fetch(self, source: Callable[[], Tensor], target: Tensor) -> Mark:
        """Copy to the host what queued work gives, beside whatever computes after it; `source` is
        asked behind that work, and what it gave is kept until the mark was waited for."""
        ...

    def mark(self) -> Mark:
        """A point behind everything that was queued to compute."""
        ...

    def host_words(self, count: int) -> Tensor:
        """Host memory that copies are quickest to and from. It is kept until the end: whoever asks
        for it is to use it again.  # [count] of int32"""
        ...

    def close(self) -> None:
        """Nothing is queued any more. Idempotent."""
        ...


class CudaStreams:
    """Streams of a GPU. Work is queued by running it: its kernels are what runs later.

    They belong to the thread that makes them, and what it does by itself from there on is queued
    with the rest: to say for each piece of work where it goes takes longer than a launch.
    """

    def __init__(self, device: torch.device, around: Around = nullcontext) -> None:
        """`around` is entered for every piece of work, such as a ban of synchronisation."""
        self._device = device
        self._compute, self._copy = _streams(device)
        self._around = around
        self._host_words: dict[int, Tensor] = {}  # by address
        self._is_closed = False
        self._thread = threading.get_ident()
        torch.cuda.set_stream(self._compute)

    def run(self, work: Work) -> None:
        assert threading.get_ident() == self._thread, "the streams belong to another thread"
        with torch.inference_mode(), self._around():
            work()

    def upload(self, words: Tensor) -> Tensor:
        self._require_own(words)
        return words.to(self._device, non_blocking=True)

    def upload_to(self, target: Tensor, words: Tensor) -> None:
        self._require_own(words)
        with torch.inference_mode():
            target.copy_(words, non_blocking=True)

    def fetch(self, source: Callable[[], Tensor], target: Tensor) -> Mark:
        self._require_own(target)
        tensor = source()
        self._copy.wait_stream(self._compute)
        torch.cuda.set_stream(self._copy)
        try:
            with torch.inference_mode():
                target.copy_(tensor, non_blocking=True)
        finally:
            torch.cuda.set_stream(self._compute)
        return _CudaMark(self._copy, tensor)

    def mark(self) -> Mark:
        return _CudaMark(self._compute)

    def host_words(self, count: int) -> Tensor:
        words = torch.frombuffer(mmap(-1, 4 * count), dtype=torch.int32)  # pages of its own
        _require(_runtime().cudaHostRegister(words.data_ptr(), 4 * count, 0))
        self._host_words[words.data_ptr()] = words
        return words

    def _require_own(self, words: Tensor) -> None:
        """Copies from and to other memory wait, and nothing tells of it."""
        assert words.data_ptr() in self._host_words, "memory that `host_words` did not give"

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(RuntimeError):  # a GPU that is broken has told whoever waited
            self._compute.synchronize()
            self._copy.synchronize()
            for address in self._host_words:
                _require(_runtime().cudaHostUnregister(address))
            _IDLE[self._device].append((self._compute, self._copy))
        self._host_words.clear()


_IDLE: dict[torch.device, list[tuple[torch.cuda.Stream, torch.cuda.Stream]]] = {}
"""Streams that were closed, for whoever is next on a GPU: torch keeps some 32 MiB for every stream
that products ran on, to the end of the process."""


def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """To compute and to copy. Devices may be opened on several threads at once."""
    with suppress(IndexError):
        return _IDLE.setdefault(device, []).pop()
    return _stream(device), _stream(device)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own


def _runtime() -> Any:
    """The CUDA runtime, whose calls return a code."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's own


def _require(code: Any) -> None:
    """Raise RuntimeError where a call did not do what it should."""
    torch.cuda.check_error(code)


@contextmanager
def no_waits() -> Iterator[None]:
    """Around work of a step: an operation of torch that waits for a GPU raises meanwhile. Copies
    of memory that is not pinned wait too and are not seen; `upload` and `fetch` look for them."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class _CudaMark:
    def __init__(self, stream: torch.cuda.Stream, kept: Tensor | None = None) -> None:
        # It sleeps instead of asking again and again.
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)
        self._kept = kept  # the stream that made it does not know who still reads it

    def wait(self) -> None:
        self._event.synchronize()
        self._kept = None

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # torch's own


class ThreadStreams:
    """Two threads in place of streams: one computes in order, one copies in order.

    Nothing is done before its thread gets to it, and `gate` may keep it from that, so that tests
    decide how late the device is.
    """

    def __init__(self, around: Around = nullcontext, gate: Callable[[str], None] | None = None):
        """`around` is entered for every piece of work; `gate` is called before each with the name
        of its thread, "compute" or "copy"."""
        self._around = around
        self._compute = _Fifo("compute", gate)
        self._copy = _Fifo("copy", gate)

    def run(self, work: Work) -> None:
        def late() -> None:
            with torch.inference_mode(), self._around():
                work()

        self._compute.put(late)

    def upload(self, words: Tensor) -> Tensor:
        sent = torch.empty_like(words)

        def copy() -> None:
            sent.copy_(words)

        self.run(copy)
        return sent

    def upload_to(self, target: Tensor, words: Tensor) -> None:
        self.run(lambda: _copied(target, words))

    def fetch(self, source: Callable[[], Tensor], target: Tensor) -> Mark:
        computed = self.mark()

        def copy() -> None:
            computed.wait()
            with torch.inference_mode():
                target.copy_(source())

        return self._copy.put(copy)

    def mark(self) -> Mark:
        return self._compute.put(lambda: None)

    def host_words(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32)

    def close(self) -> None:
        self._compute.close()
        self._copy.close()


def _copied(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


class _ThreadMark:
    def __init__(self) -> None:
        self.done: Future[None] = Future()

    def wait(self) -> None:
        self.done.result()

    def is_done(self) -> bool:
        if self.done.done():
            self.wait()
            return True
        return False


class _Fifo:
    """A thread that works in order. After a fault it does nothing more, as a GPU."""

    def __init__(self, name: str, gate: Callable[[str], None] | None) -> None:
        self._name = name
        self._gate = gate
        self._queue: SimpleQueue[tuple[Work, _ThreadMark] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"stepahead-{name}", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> Mark:
        mark = _ThreadMark()
        self._queue.put((work, mark))
        return mark

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        fault: BaseException | None = None
        while (item := self._queue.get()) is not None:
            work, mark = item
            try:
                if self._gate is not None:
                    self._gate(self._name)
                if fault is None:
                    work()
            except BaseException as error:
                fault = error
            if fault is None:
                mark.done.set_result(None)
            else:
                mark.done.set_exception(fault)
