"""Runs a command's coroutine, and an engine under it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..actors.config import EngineConfig
from .mistake import Interrupted
from .output import is_plain, is_terminal

if TYPE_CHECKING:
    from ..actors.engine import Engine

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where there is one. Ctrl-C cancels `main` and raises Interrupted."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(main)
    except KeyboardInterrupt:
        raise Interrupted from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


@asynccontextmanager
async def running_engine(config: EngineConfig) -> AsyncIterator["Engine"]:
    """An engine for the length of the block; a terminal is told that the model loads."""
    _quieten_libraries()
    async with AsyncExitStack() as stack:
        with progress(f"loading {config.model}"):
            from ..actors.engine import Engine

            engine = await stack.enter_async_context(Engine(config))
        yield engine


def _quieten_libraries() -> None:
    """What this command wants to say it says itself."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not is_terminal(sys.stderr):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on a terminal what takes long, for the length of the block."""
    if not is_terminal(sys.stderr):
        yield
    elif is_plain():
        print(f"{what} ...", file=sys.stderr, flush=True)
        yield
    else:
        from rich.console import Console

        with Console(stderr=True, highlight=False).status(what):
            yield
