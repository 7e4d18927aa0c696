"""CudaDevice: a thread that queues steps, and one that waits for their results."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias

import torch

from ...messages import (
    ModelError,
    SampleRows,
    StepaheadError,
    StepDone,
    StepFailed,
    StepPlan,
    WeightsLoaded,
)
from ..device import DeviceFacts, LoadedAddress, StepAddress
from ..masks import AwaitedMasks
from .runner import StepRunner
from .running_step import RunningStep

Load: TypeAlias = Callable[[], tuple[StepRunner, DeviceFacts]]
"""Makes the model ready; runs on the thread that queues."""

Reload: TypeAlias = Callable[[StepRunner, DeviceFacts, str], DeviceFacts]
"""Gives the runner other weights, on the same thread, or raises and changes nothing."""

Post: TypeAlias = Callable[[Callable[[], None]], None]
"""Schedules a call on the event loop from another thread: `loop.call_soon_threadsafe`."""


class CudaDevice:
    """Queues steps ahead of the GPU, and posts each result as it is there.

    A step that fails takes every step along that was launched before its failure was delivered,
    because those build on it; later ones run. Every launch is answered once, in order, and only
    when the GPU is done with it.
    """

    def __init__(self, load: Load, post: Post, reload: Reload) -> None:
        """Wait until `load` is done; what it raises is raised here."""
        self._post = post
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._is_closing = threading.Event()
        self._masks = AwaitedMasks()
        opened: Future[DeviceFacts] = Future()
        launcher = _Launcher(load, opened, self._queue, post, self._is_closing, reload, self._masks)
        self._thread = threading.Thread(target=launcher.run, name="stepahead-launch", daemon=True)
        self._thread.start()
        try:
            self._facts = opened.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        """Hand a step to the thread that queues it; its result is posted to the event loop."""
        if self._is_closing.is_set():
            self._post(partial(done, StepFailed(plan.step, "the device is closed")))
        else:
            self._queue.put(_Launch(plan, done))

    def sample(self, masks: SampleRows) -> None:
        """Masks of held rows: the step that waits for them samples."""
        self._masks.add(masks)

    def load_weights(self, source: str, done: LoadedAddress) -> None:
        """Queue a reload behind what runs; what came of it is posted to the event loop."""

        def loaded(facts: DeviceFacts | None, error: str | None) -> None:
            self._facts = facts or self._facts
            done(WeightsLoaded(source, error))

        if self._is_closing.is_set():
            self._post(partial(done, WeightsLoaded(source, "the device is closed")))
        else:
            self._queue.put(_Reload(source, self._facts, loaded))

    def close(self) -> None:
        """Wait for what was queued, fail what was not, and give the memory back."""
        self._is_closing.set()
        self._masks.close()
        self._queue.put(None)
        self._thread.join()


@dataclass(frozen=True, slots=True)
class _Launch:
    """A step to run and where its result goes."""

    plan: StepPlan
    done: StepAddress


class _Resume:
    """Stands in the queue where a failure became known: what follows does not build on it."""


@dataclass(frozen=True, slots=True)
class _Reload:
    """Weights to load, what is true of the model until then, and where to say what came of it."""

    source: str
    facts: DeviceFacts
    loaded: Callable[[DeviceFacts | None, str | None], None]


_Item: TypeAlias = _Launch | _Resume | _Reload | None


class _Launcher:
    """The thread that queues: owns the runner, and with it all memory, until it ends."""

    def __init__(
        self,
        load: Load,
        opened: "Future[DeviceFacts]",
        queue: "SimpleQueue[_Item]",
        post: Post,
        is_closing: threading.Event,
        reload: Reload,
        masks: AwaitedMasks,
    ) -> None:
        self._load = load
        self._opened = opened
        self._queue = queue
        self._post = post
        self._is_closing = is_closing
        self._reload = reload
        self._masks = masks
        self._fault: str | None = None  # why steps are not queued until the next _Resume

    def run(self) -> None:
        try:
            runner, facts = self._load()
        except BaseException as error:
            self._opened.set_exception(error)
            return
        collector = _Collector(self._post, partial(self._queue.put, _Resume()))
        self._opened.set_result(facts)
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, _Launch):
                    collector.take(item, self._launch(runner, item.plan))
                elif isinstance(item, _Resume):
                    self._fault = None
                    collector.resume()
                else:
                    self._load_weights(runner, item)
        finally:
            collector.close()
            runner.close()
            del runner
            with suppress(RuntimeError):  # a GPU that is broken
                torch.cuda.empty_cache()  # for whoever else wants it; nothing where no GPU is

    def _launch(self, runner: StepRunner, plan: StepPlan) -> RunningStep | str:
        """A step that runs, or why it does not."""
        if self._is_closing.is_set():
            return "the device closed"
        if self._fault is not None:
            with suppress(Exception):  # a plan that does not fit the tables is answered as failed
                runner.skip(plan)
            self._masks.forget(plan)
            return self._fault
        try:
            return runner.start(plan, self._masks.wait)
        except Exception as error:  # whatever it raised is that step's result
            self._masks.forget(plan)
            self._fault = _told(plan, error)
            return self._fault

    def _load_weights(self, runner: StepRunner, item: _Reload) -> None:
        facts, error = None, None
        try:
            if self._is_closing.is_set():
                raise ModelError("the device closed")
            facts = self._reload(runner, item.facts, item.source)
        except StepaheadError as mistake:
            error = str(mistake)
        except Exception as fault:  # whatever reading the files raised; the old weights are whole
            error = f"{item.source} cannot be loaded: {type(fault).__name__}: {fault}"
        _deliver(self._post, partial(item.loaded, facts, error))


class _Collector:
    """The thread that waits for results and posts them, in the order of the launches."""

    def __init__(self, post: Post, resume: Callable[[], None]) -> None:
        """`resume` is called on the event loop when a failure became known there."""
        self._post = post
        self._resume = resume
        self._queue: SimpleQueue[tuple[_Launch, RunningStep | str] | _Resume | None] = SimpleQueue()
        self._fault: str | None = None  # why results do not count until the next _Resume
        self._thread = threading.Thread(target=self._run, name="stepahead-collect", daemon=True)
        self._thread.start()

    def take(self, launch: _Launch, step: RunningStep | str) -> None:
        """A step that runs, or why it does not."""
        self._queue.put((launch, step))

    def resume(self) -> None:
        """What is taken from here on was launched by someone who knows of the last failure."""
        self._queue.put(_Resume())

    def close(self) -> None:
        """Wait for every result."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, _Resume):
                self._fault = None
            else:
                self._answer(*item)

    def _answer(self, launch: _Launch, step: RunningStep | str) -> None:
        number = launch.plan.step
        result = step if isinstance(step, str) else _result_of(step)
        if self._fault is not None:
            _deliver(self._post, partial(launch.done, StepFailed(number, self._fault)))
        elif isinstance(result, str):
            self._fault = result
            _deliver(self._post, partial(self._fail, launch.done, StepFailed(number, result)))
        else:
            _deliver(self._post, partial(launch.done, result))

    def _fail(self, done: StepAddress, failed: StepFailed) -> None:
        """On the event loop: from here on the launcher knows."""
        self._resume()
        done(failed)


def _result_of(step: RunningStep) -> StepDone | str:
    """The result once the device is done with the step, or what went wrong."""
    try:
        return step.wait()
    except Exception as error:  # whatever the step raised, or the machine below it
        return _told(step.plan, error)


def _told(plan: StepPlan, error: Exception) -> str:
    return f"step {plan.step} failed: {type(error).__name__}: {error}"


def _deliver(post: Post, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
        post(call)
