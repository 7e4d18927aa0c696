"""The keyboard while no prompt is shown: Ctrl-C calls back, everything else waits for the prompt.

Ctrl-C arrives as a byte and not as a signal, so that it reaches this process alone: not the `make`
or the shell script it was started from. A SIGINT that somebody sends is treated as the same wish.
"""

import asyncio
import os
import signal
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output

from ..job_control import stopping


@contextmanager
def quiet_keyboard(fd: int) -> Iterator[Callable[[], None]]:
    """Nothing typed is echoed or held until Enter, for the whole block: what comes early waits for
    the prompt. Yields what gives the keyboard back."""
    before = termios.tcgetattr(fd)
    mode = termios.tcgetattr(fd)
    mode[0] &= ~termios.ICRNL
    mode[3] &= ~(termios.ECHO | termios.ICANON)
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    while_stopped: list[Any] = []  # what is to come back

    def give_back() -> None:
        while_stopped[:] = termios.tcgetattr(fd)
        termios.tcsetattr(fd, termios.TCSANOW, before)

    termios.tcsetattr(fd, termios.TCSANOW, mode)
    try:
        with stopping(give_back, lambda: termios.tcsetattr(fd, termios.TCSANOW, while_stopped)):
            yield give_back
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


@contextmanager
def interrupts_as_keys(fd: int) -> Iterator[None]:
    """Ctrl-C is a byte like others, for the length of the block."""
    before = termios.tcgetattr(fd)
    mode = termios.tcgetattr(fd)
    mode[6][termios.VINTR] = bytes([os.fpathconf(fd, "PC_VDISABLE") & 0xFF])
    termios.tcsetattr(fd, termios.TCSANOW, mode)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


@contextmanager
def keys_while_busy(
    keyboard: Input, screen: Output, interrupted: Callable[[], None]
) -> Iterator[None]:
    """Call back on each Ctrl-C; keep the other keys, and whole pastes, for the next prompt."""

    def sort(keys: list[KeyPress]) -> None:
        store_typeahead(keyboard, [key for key in keys if key.key is not Keys.ControlC])
        if keyboard.closed or any(key.key is Keys.ControlC for key in keys):
            interrupted()

    sort(get_typeahead(keyboard))
    with _bracketed_paste(screen), keyboard.attach(lambda: sort(keyboard.read_keys())):
        yield
    store_typeahead(keyboard, keyboard.flush_keys())


@contextmanager
def _bracketed_paste(screen: Output) -> Iterator[None]:
    screen.enable_bracketed_paste()
    screen.flush()
    try:
        yield
    finally:
        screen.disable_bracketed_paste()
        screen.flush()


@contextmanager
def on_signal(number: int, callback: Callable[[], None]) -> Iterator[None]:
    """Call back in the event loop on such a signal, for the length of the block."""
    loop = asyncio.get_running_loop()
    before = signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback))
    try:
        yield
    finally:
        signal.signal(number, before)
