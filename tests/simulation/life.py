"""A life: runs a script with the five real actors in virtual time, and asserts what must hold.

While it runs: after every message the invariants of the cores (actors/invariants.py), among them
that work leads to a step. At the end: everybody heard exactly their own answer, nothing is left,
and every request and every step has had exactly one end.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepahead import Engine, EngineDead
from stepahead.actors.batching.limits import MAX_FAILED_STEPS, MAX_PREEMPTIONS
from stepahead.actors.pin import Pin as HeldPin
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle

from ..drafters import ScriptedDrafter
from ..engines import STEP, is_empty, make_config, make_engine, make_facts, settle
from .caller import DEAD, GIVEN_UP, REFUSED, Caller
from .conservation import Conservation
from .device import FaultyDevice
from .script import (
    Abort,
    BreakDevice,
    Cancel,
    Close,
    Drain,
    FailRow,
    FailStep,
    KillExecutor,
    Operation,
    Pause,
    Pin,
    ReloadWeights,
    ResetCache,
    Resume,
    Script,
    Submit,
    Unpin,
    family_tokens,
)

FAILURES = {FailRow, FailStep, BreakDevice}
VOIDS = {*FAILURES, ReloadWeights}  # that lose what is in flight
STEP_S = 0.010  # virtual seconds
MOST_RUNS = 1 + MAX_PREEMPTIONS + MAX_FAILED_STEPS  # how often one position may be computed


@dataclass(slots=True)
class Lived:
    """What happened, for statistics."""

    steps: int = 0
    messages: int = 0
    preemptions: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Lived") -> None:
        self.steps += other.steps
        self.messages += other.messages
        self.preemptions += other.preemptions
        self.ends += other.ends


class Violation(AssertionError):
    """Raised when something that must hold did not."""


def live(script: Script, *, record: Path | None = None) -> Lived:
    """Run a script. Raises Violation; a recording tells of it, too."""
    life = _Life(script)
    run_virtual(life.run(record))
    return life.lived


class _Life:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.lived = Lived()
        self._callers: dict[str, Caller] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._controls: list[asyncio.Task[None]] = []
        self._pins: dict[str, HeldPin] = {}
        self._kinds = {type(operation) for operation in script.operations}

    async def run(self, record: Path | None) -> None:
        loop = asyncio.get_running_loop()
        self._fault: asyncio.Future[None] = loop.create_future()  # what the device finds wrong
        loop.set_exception_handler(lambda _, told: self._report(told.get("exception")))
        engine = self._make_engine(record)
        async with engine:
            self._conservation = Conservation(engine._started, is_reliable=not VOIDS & self._kinds)
            main = asyncio.create_task(self._live(engine))
            try:
                await self._judge(engine, main)
            except Exception as error:
                engine._started.journal.fail("simulation", error)
                raise Violation(str(engine._started.journal.failure)) from error
            finally:
                for task in (main, *self._tasks.values(), *self._controls):
                    task.cancel()

    def _make_engine(self, record: Path | None) -> Engine:
        settings: dict[str, Any] = asdict(self.script.settings)
        oracle = Oracle(eos_every=settings.pop("eos_every"))
        drafts = settings.pop("drafts")
        config = make_config(**settings)
        self._device = FaultyDevice(
            make_facts(config),
            2 * config.max_num_seqs,
            asyncio.get_running_loop().call_later,
            oracle=oracle,
            step_time=STEP,
            report=self._report,
        )
        return make_engine(
            device=self._device,
            drafter=ScriptedDrafter(oracle, drafts) if drafts else None,
            record=record,
            check_invariants=True,
            **settings,
        )

    def _report(self, error: BaseException | None) -> None:
        if not self._fault.done():
            self._fault.set_exception(error or AssertionError("a callback failed"))

    async def _judge(self, engine: Engine, main: asyncio.Task[None]) -> None:
        """Wait until it is over, or until something is wrong."""
        await asyncio.wait(
            {main, self._fault},
            timeout=_patience_s(self.script),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._fault.done():
            self._fault.result()
        assert main.done(), "it takes far too long: a request waits for ever"
        main.result()
        self._check(engine)

    # While it runs

    async def _live(self, engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        for operation in sorted(self.script.operations, key=lambda operation: operation.at):
            await asyncio.sleep(operation.at / 1e3 - loop.time())
            for _ in range(operation.hops):
                await asyncio.sleep(0)
            await self._perform(engine, operation)
        await engine.resume()
        await asyncio.gather(*self._tasks.values(), *self._controls, return_exceptions=True)
        await settle(engine, steps=self.script.settings.steps_in_flight + 1)

    async def _perform(self, engine: Engine, operation: Operation) -> None:
        match operation:
            case Submit():
                caller = self._callers[operation.name] = Caller(operation)
                self._tasks[operation.name] = asyncio.create_task(caller.run(engine))
            case Abort():
                await engine.abort(operation.name)
            case Cancel():
                if operation.name in self._tasks:
                    self._tasks[operation.name].cancel()
            case Pause():
                await engine.pause()
            case Resume():
                await engine.resume()
            case ResetCache():
                await engine.reset_prefix_cache()
            case Drain(timeout=timeout):
                self._start(self._drain(engine, timeout))
            case ReloadWeights(source=source):
                self._start(engine.reload_weights(source))
            case Pin():
                with suppress(EngineDead):
                    self._pins[operation.name] = await self._pin(engine, operation)
            case Unpin():
                if operation.name in self._pins:
                    await self._pins[operation.name].unpin()
            case FailRow():
                self._device.fail_row(operation.row)
            case FailStep():
                self._device.fail_step()
            case BreakDevice():
                self._device.is_broken = True
            case KillExecutor():
                self._device.is_lost = True
            case Close():
                await engine.close()
            case _:
                raise TypeError(f"nobody knows how to perform {operation}")

    async def _pin(self, engine: Engine, pin: Pin) -> HeldPin:
        return await engine.pin_prefix(
            family_tokens(pin.family, pin.shared),
            cache_salt=pin.salt,
            ttl=None if pin.ttl is None else pin.ttl / 1e3,
        )

    def _start(self, control: Coroutine[Any, Any, None]) -> None:
        self._controls.append(asyncio.create_task(control))

    async def _drain(self, engine: Engine, timeout: int | None) -> None:
        if await engine.drain(None if timeout is None else timeout / 1e3):
            assert (await engine.health()).live_requests == 0, "drained, and not empty"
        await engine.resume()

    # At the end

    def _check(self, engine: Engine) -> None:
        self._check_death(engine)
        aborted = {o.name for o in self.script.operations if isinstance(o, Abort)}
        callers = list(self._callers.values())
        for caller in callers:
            task = self._tasks[caller.submit.name]
            if not task.cancelled():
                task.result()
            caller.check(self.script, aborted)
            caller.check_hit(callers, self.script)
        self._check_controls()
        self._check_ends()
        lived, stats = self.lived, engine.stats()
        lived.steps, lived.preemptions = stats.steps_done, stats.preemptions
        lived.messages = self._conservation.messages
        lived.ends.update(caller.end for caller in callers)
        if lived.ends[DEAD] == 0 and Close not in self._kinds:
            assert is_empty(engine), "something leaked"
            self._conservation.check_all_is_over(
                sum(caller.was_admitted for caller in callers), engine
            )

    def _check_death(self, engine: Engine) -> None:
        """An engine dies of what a script does to its device, and of nothing else."""
        failure = engine._started.journal.failure
        if failure is None:
            return
        of_launch = failure.actor == "executor" and KillExecutor in self._kinds
        of_steps = failure.kind == "RuntimeError" and BreakDevice in self._kinds
        assert of_launch or of_steps, str(failure)

    def _check_controls(self) -> None:
        """What an operator asked for was done, unless the engine ended first."""
        for task in self._controls:
            error = task.exception()
            if error is not None and not isinstance(error, EngineDead):
                raise error

    def _check_ends(self) -> None:
        """Faults strike those that they are meant for."""
        ends = Counter(caller.end for caller in self._callers.values())
        if not {KillExecutor, BreakDevice, Close} & self._kinds:
            assert ends[DEAD] == 0, "the engine died"
        if not FAILURES & self._kinds:
            assert ends["error"] == 0, "a request failed on a device that did not"
        if REFUSED in ends and Drain not in self._kinds:
            assert len(self._callers) > self.script.settings.max_waiting, "refused without need"
        given_up = {c.submit.name for c in self._callers.values() if c.end == GIVEN_UP}
        cancelled = {o.name for o in self.script.operations if isinstance(o, Cancel)}
        assert given_up <= cancelled | self._leavers(), "a caller got no end"

    def _leavers(self) -> set[str]:
        submits = [caller.submit for caller in self._callers.values()]
        return {submit.name for submit in submits if submit.leave_after is not None}


def _patience_s(script: Script) -> float:
    """Time enough for every request on its own, one position per step, several times over."""
    submits = [operation for operation in script.operations if isinstance(operation, Submit)]
    positions = sum(len(submit.prompt()) + submit.max_tokens for submit in submits)
    pauses_s = sum(submit.pause * submit.max_tokens for submit in submits) / 1e3
    last_s = max((operation.at for operation in script.operations), default=0) / 1e3
    return last_s + pauses_s + STEP_S * (50 + MOST_RUNS * positions)
