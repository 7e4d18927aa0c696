"""What every device with a thread of its own shares: a queue in front, and one owner behind it.

The device is what the event loop calls; it never waits. The thread owns the runner, and with it all
memory, from loading to the end.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar

from ..messages import (
    ModelError,
    SampleRows,
    StepaheadError,
    StepFailed,
    StepPlan,
    WeightsLoaded,
)
from .device import DeviceFacts, LoadedAddress, StepAddress
from .masks import AwaitedMasks

Runner = TypeVar("Runner")

Post: TypeAlias = Callable[[Callable[[], None]], None]
"""Schedules a call on the event loop from another thread: `loop.call_soon_threadsafe`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A step to run and where its result goes."""

    plan: StepPlan
    done: StepAddress


class Resume:
    """Stands in the queue where a failure became known: what follows does not build on it."""


@dataclass(frozen=True, slots=True)
class _Reload:
    """Weights to load, what is true of the model until then, and where to say what came of it."""

    source: str
    facts: DeviceFacts
    loaded: Callable[[DeviceFacts | None, str | None], None]


class DeviceThread(ABC, Generic[Runner]):
    """The thread that owns the runner: it takes what is queued, one after the other."""

    def __init__(
        self,
        load: Callable[[], tuple[Runner, DeviceFacts]],
        reload: Callable[[Runner, DeviceFacts, str], DeviceFacts],
        post: Post,
    ) -> None:
        """Both are called on this thread: `load` makes the model ready; `reload` gives the runner
        other weights, or raises and changes nothing."""
        self._load = load
        self._reload = reload
        self.post = post
        self.queue: SimpleQueue[Launch | Resume | _Reload | None] = SimpleQueue()
        self.is_closing = threading.Event()
        self.masks = AwaitedMasks()
        self.opened: Future[DeviceFacts] = Future()
        self.fault: str | None = None  # why steps fail until the next Resume

    @abstractmethod
    def launch(self, runner: Runner, item: Launch) -> None:
        """A step is next; its result is delivered, now or later, but in order."""

    def begin(self) -> None:
        """The model is loaded, and nothing was launched yet."""

    def resume(self) -> None:
        """What is queued from here on does not build on the last failure."""
        self.fault = None

    @abstractmethod
    def end(self, runner: Runner) -> None:
        """Nothing is queued any more."""

    @abstractmethod
    def give_memory_back(self) -> None:
        """The runner is gone, or never came: whoever else wants what it had can have it."""

    def run(self) -> None:
        try:
            runner, facts = self._load()
            self.begin()
        except BaseException as error:
            self.give_memory_back()
            self.opened.set_exception(error)
            return
        self.opened.set_result(facts)
        try:
            while (item := self.queue.get()) is not None:
                if isinstance(item, Launch):
                    self.launch(runner, item)
                elif isinstance(item, Resume):
                    self.resume()
                else:
                    self._load_weights(runner, item)
        finally:
            self.end(runner)
            del runner
            self.give_memory_back()

    def _load_weights(self, runner: Runner, item: _Reload) -> None:
        facts, error = None, None
        try:
            if self.is_closing.is_set():
                raise ModelError("the device closed")
            facts = self._reload(runner, item.facts, item.source)
        except StepaheadError as mistake:
            error = str(mistake)
        except Exception as fault:  # whatever reading the files raised; the old weights are whole
            error = f"{item.source} cannot be loaded: {type(fault).__name__}: {fault}"
        self.deliver(partial(item.loaded, facts, error))

    def deliver(self, call: Callable[[], None]) -> None:
        """Have it called on the event loop."""
        deliver(self.post, call)


def deliver(post: Post, call: Callable[[], None]) -> None:
    """Have it called on the event loop, unless that is closed: nobody waits any more."""
    with suppress(RuntimeError):
        post(call)


def told(plan: StepPlan, error: Exception) -> str:
    """What is said of a step that raised, in one line: what torch puts behind the first of a GPU's
    error is advice to who debugs kernels."""
    lines = str(error).strip().splitlines() or [""]
    return f"step {plan.step} failed: {type(error).__name__}: {lines[0]}"


class QueuedDevice(Generic[Runner]):
    """The side of the event loop: it queues, and returns at once."""

    def __init__(self, owner: DeviceThread[Runner], name: str) -> None:
        """Wait until the model is loaded on a thread of that name; what that raises is raised."""
        self._owner = owner
        self._thread = threading.Thread(target=owner.run, name=name, daemon=True)
        self._thread.start()
        try:
            self._facts = owner.opened.result()
        except BaseException:
            owner.queue.put(None)  # whoever waits may be interrupted, and the model loaded
            self._thread.join()
            raise

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        """Queue a step; its result is posted to the event loop."""
        if self._owner.is_closing.is_set():
            self._owner.post(partial(done, StepFailed(plan.step, "the device is closed")))
        else:
            self._owner.queue.put(Launch(plan, done))

    def sample(self, masks: SampleRows) -> None:
        """Masks of held rows: the step that waits for them samples."""
        self._owner.masks.add(masks)

    def load_weights(self, source: str, done: LoadedAddress) -> None:
        """Queue a reload behind what runs; what came of it is posted to the event loop."""

        def loaded(facts: DeviceFacts | None, error: str | None) -> None:
            self._facts = facts or self._facts
            done(WeightsLoaded(source, error))

        if self._owner.is_closing.is_set():
            self._owner.post(partial(done, WeightsLoaded(source, "the device is closed")))
        else:
            self._owner.queue.put(_Reload(source, self._facts, loaded))

    def close(self) -> None:
        """Wait for what runs, fail what waits, and give the memory back. Idempotent."""
        self._owner.is_closing.set()
        self._owner.masks.close()
        self._owner.queue.put(None)
        self._thread.join()
