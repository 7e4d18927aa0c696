"""Processes and their terminal: whose it is, and Ctrl-Z, with which it is given back as it was."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .piped import stdin_is_terminal


def own_keyboard() -> int | None:
    """Standard input, where it is a terminal and this process in its foreground: one in the
    background is stopped when it touches the keyboard."""
    if not stdin_is_terminal():
        return None
    keyboard = sys.stdin.fileno()
    try:
        return keyboard if os.tcgetpgrp(keyboard) == os.getpgrp() else None
    except OSError:  # a terminal, but not the one this process belongs to
        return None


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
