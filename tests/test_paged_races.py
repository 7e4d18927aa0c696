"""Work that is late and copies that are later still change nothing; a missing wait would."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepahead.messages import StepDone, StepFailed

from .device_driver import Driver, make_plan, make_row
from .paged_devices import (
    HostBuffers,
    Mark,
    OpaqueOps,
    Staging,
    ThreadStreams,
    TorchOps,
    one_thread,  # noqa: F401
    open_paged,
    sample_rows,
)
from .run_again import RunAgain
from .test_cpu_device import PROMPTS, RESULT_S
from .tiny_models import make_folder

STEPS = 8


class Gate:
    """Keeps threads from working until it is opened for them."""

    def __init__(self, *closed: str) -> None:
        self._closed = set(closed)
        self._changed = threading.Condition()

    def close(self, *names: str) -> None:
        with self._changed:
            self._closed.update(names)

    def __call__(self, name: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: name not in self._closed, timeout=RESULT_S)

    def open(self) -> None:
        with self._changed:
            self._closed.clear()
            self._changed.notify_all()


class Watched(ThreadStreams):
    """Tells how many steps were sent."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__(gate=gate)
        self.sent = threading.Semaphore(0)

    def upload(self, words: Tensor) -> Tensor:
        try:
            return super().upload(words)
        finally:
            self.sent.release()

    def upload_to(self, target: Tensor, words: Tensor) -> None:
        super().upload_to(target, words)
        self.sent.release()


class Done:
    """A mark that nobody has to wait for."""

    def wait(self) -> None:
        pass

    def is_done(self) -> bool:
        return True


class WithoutGuards(Watched):
    """Buffers are written again though their copies wait."""

    def mark(self) -> Mark:
        return Done()


class WithoutEnds(Watched):
    """Results are read though their copies wait."""

    def fetch(self, source: Callable[[], Tensor], target: Tensor) -> Mark:
        super().fetch(source, target)
        return Done()


class WithoutOrder(Watched):
    """Copies do not wait for what they copy."""

    def fetch(self, source: Callable[[], Tensor], target: Tensor) -> Mark:
        return self._copy.put(lambda: _copied(source(), target))


def _copied(source: Tensor, target: Tensor) -> None:
    target.copy_(source)


class OneResult:
    """Every step samples into the same memory, which copies of others may still read."""

    result: Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        sampled = sample_rows(*args, **kwargs)
        if self.result is None:
            self.result = torch.empty_like(sampled)
        return self.result.copy_(sampled)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


def decode(
    folder: Path,
    *closed: str,
    streams: type[Watched] = Watched,
    capture: type[RunAgain] | None = None,
) -> list[list[int]]:
    """Two rows said over some steps, all of them launched and sent before the gate opens."""
    gate = Gate()
    made = streams(gate)
    device = open_paged(folder, streams=made, capture=capture)
    gate.close(*closed)
    driver = Driver(device)
    rows = [make_row(slot, PROMPTS[slot], range(8 * slot, 8 * slot + 8)) for slot in range(2)]
    device.launch(make_plan(1, [(0, 0, 6, True), (1, 0, 3, True)], rows), driver.results.put)
    for step in range(1, STEPS):
        later = make_plan(step + 1, [(0, 5 + step, 1, True), (1, 2 + step, 1, True)])
        device.launch(later, driver.results.put)
    for _ in range(STEPS):
        assert made.sent.acquire(timeout=RESULT_S)
    if "compute" not in closed:
        ThreadStreams.mark(made).wait()  # computing is ahead of copying as far as it gets
    gate.open()
    results = [driver.results.get(timeout=RESULT_S) for _ in range(STEPS)]
    device.close()
    return [said(result) for result in results]


def said(result: StepDone | StepFailed) -> list[int]:
    return result.token_ids.tolist() if isinstance(result, StepDone) else []


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    """The same, step by step."""
    device = open_paged(folder)
    driver = Driver(device)
    rows = [make_row(slot, PROMPTS[slot], range(8 * slot, 8 * slot + 8)) for slot in range(2)]
    told = [said(driver.run([(0, 0, 6, True), (1, 0, 3, True)], rows))]
    for step in range(1, STEPS):
        told.append(said(driver.run([(0, 5 + step, 1, True), (1, 2 + step, 1, True)])))
    device.close()
    return told


WAYS = pytest.mark.parametrize("capture", [None, RunAgain], ids=["", "graphs"])


@WAYS
@pytest.mark.parametrize("closed", [(), ("compute",), ("copy",), ("compute", "copy")])
def test_steps_that_were_launched_ahead_say_what_they_say_one_by_one(
    folder: Path,
    expected: list[list[int]],
    closed: tuple[str, ...],
    capture: type[RunAgain] | None,
) -> None:
    assert decode(folder, *closed, capture=capture) == expected


@WAYS
def test_a_buffer_that_is_written_too_early_would_be_seen(
    folder: Path, expected: list[list[int]], capture: type[RunAgain] | None
) -> None:
    assert decode(folder, "compute", streams=WithoutGuards, capture=capture) != expected


def test_a_result_that_is_read_too_early_would_be_seen(
    folder: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watched, "host_words", lambda self, count: torch.full((count,), 7).int())

    assert decode(folder, "copy") == expected
    assert decode(folder, "copy", streams=WithoutEnds) != expected


def test_a_copy_that_does_not_wait_for_the_step_would_be_seen(
    folder: Path, expected: list[list[int]]
) -> None:
    assert decode(folder, "compute", streams=WithoutOrder) != expected


def test_a_result_that_is_written_over_before_it_is_copied_would_be_seen(
    folder: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepahead.gpu.cuda.runner.sample_rows", OneResult())

    assert decode(folder, "copy") != expected


def test_a_result_of_a_graph_that_is_not_copied_before_the_next_would_be_seen(
    folder: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "clone", lambda self: self)

    assert decode(folder, "copy", capture=RunAgain) != expected


def test_a_buffer_grows_with_what_is_sent() -> None:
    streams = ThreadStreams()
    staging = Staging(streams)
    parts = [torch.arange(size).numpy() for size in (3, 0, 5000, 1)]

    sent = [staging.send(parts) for _ in range(3)]
    streams.mark().wait()
    streams.close()

    for tensors in sent:
        assert [tensor.tolist() for tensor in tensors] == [part.tolist() for part in parts]
        assert all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


def test_sending_waits_for_nothing_that_is_queued() -> None:
    gate = Gate("compute")
    streams = ThreadStreams(gate=gate)
    staging = Staging(streams)

    sent = [staging.send([np.array([number])]) for number in range(20)]  # or it ends here
    gate.open()
    streams.mark().wait()
    streams.close()

    assert [one.tolist() for (one,) in sent] == [[number] for number in range(20)]


def test_a_buffer_is_taken_again_when_its_copy_is_done_and_not_before() -> None:
    gate = Gate("compute")
    streams = ThreadStreams(gate=gate)
    buffers = HostBuffers(streams)
    copied = streams.mark()
    first = buffers.take(10)
    buffers.give(first, busy_until=copied)

    second = buffers.take(10)
    gate.open()
    copied.wait()

    assert second is not first
    assert buffers.take(4096) is first
    assert buffers.take(4097) not in (first, second)
    streams.close()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(-3, 4, dtype=np.int64),
        np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
        np.array([True, False, True, True, False]),
        np.arange(6, dtype=np.int32)[::2],
        np.zeros((0, 2), dtype=np.int64),
    ],
)
def test_arrays_of_any_kind_arrive_as_they_are(array: NDArray[Any]) -> None:
    streams = ThreadStreams()

    sent = Staging(streams).upload([array, np.array([7], dtype=np.int64), array])
    streams.mark().wait()
    streams.close()

    for tensor in (sent[0], sent[2]):
        assert tensor.numpy().dtype == array.dtype
        assert tensor.tolist() == array.tolist()
    assert sent[1].tolist() == [7]


def test_after_a_fault_nothing_more_is_done_and_whoever_waits_is_told() -> None:
    streams = ThreadStreams()
    done: list[int] = []

    def broken() -> None:
        raise ValueError("the machine is broken")

    streams.run(lambda: done.append(1))
    streams.mark().wait()
    streams.run(broken)
    streams.run(lambda: done.append(2))
    marks = [streams.mark(), streams.fetch(lambda: torch.zeros(1), torch.ones(1))]
    for mark in marks:
        with pytest.raises(ValueError, match="is broken"):
            mark.wait()
    streams.close()

    assert done == [1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x + bool(x.sum() > 0),
        lambda x: x * x.amax().item(),
        lambda x: x * x[0].tolist()[0],
        lambda x: x[x > 0],
        lambda x: x * torch.tensor([1.0, 2.0])[0],
        lambda x: x.nonzero(),
    ],
)
def test_an_operation_that_would_wait_for_a_gpu_fails_its_step(
    folder: Path, ask: Callable[[Tensor], Tensor]
) -> None:
    class Asking(OpaqueOps):
        def silu_mul(self, gate_up: Tensor) -> Tensor:
            return ask(TorchOps.silu_mul(gate_up))

    device = open_paged(folder, ops=Asking())
    with pytest.raises(RuntimeError, match="waits for the device"):
        Driver(device).run([(0, 0, 2, True)], [make_row(0, [1, 2], [0])])
    device.close()


def test_a_gpu_that_breaks_fails_every_step_from_there_on_and_closes(folder: Path) -> None:
    calls = iter(range(10_000))

    def gate(name: str) -> None:
        if next(calls) > 40:
            raise RuntimeError("the GPU is lost")

    device = open_paged(folder, streams=ThreadStreams(gate=gate))
    driver = Driver(device)
    rows = [make_row(0, PROMPTS[0], range(8))]
    for step in range(20):
        device.launch(make_plan(step + 1, [(0, 0, 6, True)], rows), driver.results.put)
    results = [driver.results.get(timeout=RESULT_S) for _ in range(20)]
    device.close()

    failed = [isinstance(result, StepFailed) for result in results]
    assert failed == sorted(failed)
    assert not failed[0]
    assert "the GPU is lost" in getattr(results[-1], "error", "")
