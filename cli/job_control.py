"""Ctrl-Z: a process that has changed its terminal gives it back as it was while it is stopped."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopping(leave: Callable[[], None], come_back: Callable[[], None]) -> Iterator[None]:
    """Do something before the process stops and after it goes on, for the length of the block.

    It stops as any process does: where no shell could have it go on again, it does not stop.
    """

    def stop(*_: object) -> None:
        leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, stop)
        come_back()

    before = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)
