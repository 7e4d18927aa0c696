"""Runs a command's coroutine, and an engine under it."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..actors.config import EngineConfig
from .flight import DumpOnSignal, tell_of_death, with_failure_path
from .mistake import INTERRUPTED, Interrupted
from .output import is_plain, is_terminal

if TYPE_CHECKING:
    from ..actors.engine import Engine

T = TypeVar("T")
LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


def run(main: Coroutine[Any, Any, T], loop_factory: LoopFactory | None = None) -> T:
    """Run, on uvloop where there is one. Ctrl-C cancels `main` and raises Interrupted."""
    try:
        with asyncio.Runner(loop_factory=loop_factory or event_loops()[0][1]) as runner:
            return runner.run(main)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # impatience must not end in a traceback
        raise Interrupted from None


def event_loops() -> list[tuple[str, LoopFactory]]:
    """The event loops there are here, the preferred one first."""
    loops: list[tuple[str, LoopFactory]] = [("asyncio", asyncio.new_event_loop)]
    if sys.platform == "win32":
        return loops
    import uvloop

    return [("uvloop", uvloop.new_event_loop), *loops]


@asynccontextmanager
async def running_engine(
    config: EngineConfig,
    dump: DumpOnSignal | None = None,
    *,
    tidy_up: Callable[[], None] = lambda: None,
) -> AsyncIterator["Engine"]:
    """An engine for the length of the block; a terminal is told that the model loads. Who goes on
    with other engines tells `dump` of them. An interruption while it loads ends the process, after
    `tidy_up`."""
    _quieten_libraries()
    dump = dump or DumpOnSignal()
    async with AsyncExitStack() as stack:
        stack.enter_context(dump.listening())
        with (
            progress(f"loading {config.model}") as hide,
            _interruption_ends_all(hide, tidy_up),
            nothing_collected(),
        ):
            from ..actors.engine import Engine

            config = with_failure_path(config)
            stack.callback(tell_of_death, config)
            engine = await stack.enter_async_context(Engine(config))
        dump.engine = lambda: engine
        yield engine


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keep the collector away from what is made meanwhile, then and ever after: it would walk
    through libraries, weights or a simulation again and again and find nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _quieten_libraries() -> None:
    """What this command wants to say it says itself."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not is_terminal(sys.stderr):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def _interruption_ends_all(*last_acts: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT end the process at once: a thread that loads a model cannot be told to stop."""

    def leave(*_: object) -> None:
        for act in last_acts:
            act()
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress(what: str) -> Iterator[Callable[[], None]]:
    """Say on a terminal what takes long, for the length of the block; yields what hides it."""
    if not is_terminal(sys.stderr):
        yield lambda: None
    elif is_plain():
        print(f"{what} ...", file=sys.stderr, flush=True)
        yield lambda: None
    else:
        from rich.console import Console

        with Console(stderr=True, highlight=False).status(what) as status:
            yield status.stop
