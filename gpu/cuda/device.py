"""CudaDevice: a thread that queues steps, and one that waits for their results."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

import torch

from ...messages import StepDone, StepFailed, StepPlan
from ..device import DeviceFacts, StepAddress
from ..queued import DeviceThread, Launch, Post, QueuedDevice, Resume, deliver, told
from .runner import StepRunner
from .running_step import RunningStep


class CudaDevice(QueuedDevice[StepRunner]):
    """Queues steps ahead of the GPU, and posts each result as it is there.

    A step that fails takes every step along that was launched before its failure was delivered,
    because those build on it; later ones run. Every launch is answered once, in order, and only
    when the GPU is done with it.
    """

    def __init__(
        self,
        load: Callable[[], tuple[StepRunner, DeviceFacts]],
        post: Post,
        reload: Callable[[StepRunner, DeviceFacts, str], DeviceFacts],
    ) -> None:
        """Wait until `load` is done; what it raises is raised here."""
        super().__init__(_Launcher(load, reload, post), "stepahead-launch")


class _Launcher(DeviceThread[StepRunner]):
    """The thread that queues; its fault is why steps are not queued."""

    def begin(self) -> None:
        self._collector = _Collector(self.post, partial(self.queue.put, Resume()))

    def launch(self, runner: StepRunner, item: Launch) -> None:
        self._collector.take(item, self._start(runner, item.plan))

    def resume(self) -> None:
        super().resume()
        self._collector.resume()

    def end(self, runner: StepRunner) -> None:
        self._collector.close()
        runner.close()

    def give_memory_back(self) -> None:
        with suppress(RuntimeError):  # a GPU that is broken
            torch.cuda.empty_cache()  # nothing where no GPU is

    def _start(self, runner: StepRunner, plan: StepPlan) -> RunningStep | str:
        """A step that runs, or why it does not."""
        if self.is_closing.is_set():
            return "the device closed"
        if self.fault is not None:
            with suppress(Exception):  # a plan that does not fit the tables is answered as failed
                runner.skip(plan)
            self.masks.forget(plan)
            return self.fault
        try:
            step = runner.start(plan, self.masks.wait)
        except Exception as error:  # whatever it raised is that step's result
            self.masks.forget(plan)
            self.fault = told(plan, error)
            return self.fault
        if step.error is not None:  # what is launched behind it would build on half a step
            self.fault = told(plan, step.error)
        return step


class _Collector:
    """The thread that waits for results and posts them, in the order of the launches."""

    def __init__(self, post: Post, resume: Callable[[], None]) -> None:
        """`resume` is called on the event loop when a failure became known there."""
        self._post = post
        self._resume = resume
        self._queue: SimpleQueue[tuple[Launch, RunningStep | str] | Resume | None] = SimpleQueue()
        self._fault: str | None = None  # why results do not count until the next Resume
        self._thread = threading.Thread(target=self._run, name="stepahead-collect", daemon=True)
        self._thread.start()

    def take(self, launch: Launch, step: RunningStep | str) -> None:
        """A step that runs, or why it does not."""
        self._queue.put((launch, step))

    def resume(self) -> None:
        """What is taken from here on was launched by someone who knows of the last failure."""
        self._queue.put(Resume())

    def close(self) -> None:
        """Wait for every result."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Resume):
                self._fault = None
            else:
                self._answer(*item)

    def _answer(self, launch: Launch, step: RunningStep | str) -> None:
        number = launch.plan.step
        result = step if isinstance(step, str) else _result_of(step)
        if self._fault is not None:
            deliver(self._post, partial(launch.done, StepFailed(number, self._fault)))
        elif isinstance(result, str):
            self._fault = result
            deliver(self._post, partial(self._fail, launch.done, StepFailed(number, result)))
        else:
            deliver(self._post, partial(launch.done, result))

    def _fail(self, done: StepAddress, failed: StepFailed) -> None:
        """On the event loop: from here on the launcher knows."""
        self._resume()
        done(failed)


def _result_of(step: RunningStep) -> StepDone | str:
    """The result once the device is done with the step, or what went wrong."""
    try:
        return step.wait()
    except Exception as error:  # whatever the step raised, or the machine below it
        return told(step.plan, error)
