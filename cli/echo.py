"""The keyboard of a terminal: whether it is this process's, and whether what is typed is echoed."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .piped import stdin_is_terminal


def own_keyboard() -> int | None:
    """Standard input, where it is a terminal and this process in its foreground: one in the
    background is stopped when it touches the keyboard."""
    if sys.platform == "win32" or not stdin_is_terminal():
        return None
    keyboard = sys.stdin.fileno()
    try:
        return keyboard if os.tcgetpgrp(keyboard) == os.getpgrp() else None
    except OSError:  # a terminal, but not the one this process belongs to
        return None


@contextmanager
def unechoed() -> Iterator[Callable[[], None]]:
    """Nothing that is typed is shown for the length of the block, where it would stand in a line
    that changes; whoever reads next gets it. Yields what ends this early."""
    keyboard = own_keyboard()
    if keyboard is None:
        yield lambda: None
        return
    import termios

    before = termios.tcgetattr(keyboard)
    silent = termios.tcgetattr(keyboard)
    silent[3] &= ~termios.ECHO

    def echo_again() -> None:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)

    termios.tcsetattr(keyboard, termios.TCSANOW, silent)
    try:
        yield echo_again
    finally:
        echo_again()
