"""One picture that changes, on a screen of its own: there a terminal that gets another size breaks
no old lines anew, and what was there before comes back in the end."""

import os
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..job_control import own_keyboard, stopping
from ..output import write
from ..terminal_size import terminal_size
from .view import Reading, screen

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen without a cursor
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"  # the latter two erase


class LivePicture:
    """Shows readings one after another; the last one stays behind."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._keyboard = own_keyboard()
        self._modes: list[Any] = []  # of the terminal before

    @contextmanager
    def shown(self) -> Iterator[None]:
        """For the length of the block, whatever ends it."""
        before = signal.signal(signal.SIGTERM, _end)
        self._enter()
        try:
            with stopping(self._leave, self._enter):
                yield
        finally:
            self._leave()
            signal.signal(signal.SIGTERM, before)
            if self._last is not None:
                write("".join(f"{line}\n" for line in _fitting(self._last)))

    def show(self, reading: Reading) -> None:
        """Over the one before."""
        self._last = reading
        lines = _fitting(reading)[: terminal_size().rows]
        write(_HOME + "\r\n".join(f"{line}{_REST_OF_LINE}" for line in lines) + _REST)

    def wait(self, seconds: float) -> bool:
        """Until it is time to look again; False once q is pressed."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            if self._keyboard is None:
                time.sleep(left_s)
            elif select.select([self._keyboard], [], [], left_s)[0]:
                keys = os.read(self._keyboard, 64)
                if not keys or b"q" in keys:
                    return False
        return True

    def _enter(self) -> None:
        if self._keyboard is not None:
            self._modes = termios.tcgetattr(self._keyboard)
            quiet = termios.tcgetattr(self._keyboard)
            quiet[3] &= ~(termios.ECHO | termios.ICANON)  # Ctrl-C and Ctrl-Z are signals still
            termios.tcsetattr(self._keyboard, termios.TCSANOW, quiet)
        os.write(sys.stdout.fileno(), _ENTER.encode())

    def _leave(self) -> None:
        os.write(sys.stdout.fileno(), _LEAVE.encode())
        if self._keyboard is not None:
            termios.tcsetattr(self._keyboard, termios.TCSANOW, self._modes)


def _fitting(reading: Reading) -> list[str]:
    return screen(reading, terminal_size().columns - 1)


def _end(number: int, _: object) -> None:
    """Somebody ends the process: the terminal is to be left as it was."""
    sys.exit(128 + number)
