"""The command line as a user meets it: in a pipe, and on a pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

COMMAND = (sys.executable, "-m", "stepahead")
GOES_ON = ("bash", "-mc", '"$@"; echo "(in the shell)"; fg; echo "(again)"; fg', "bash")
"""Before a command: a shell that has it go on at once when it was stopped."""
DEADLINE = 60.0  # seconds that a test waits for output before it fails
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")


def environment(home: Path, **more: str) -> dict[str, str]:
    """This process's environment with a home of its own and an ordinary terminal.

    Nothing here answers when asked where the cursor is, so nobody is to ask.
    """
    plain = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "XDG_STATE_HOME"}}
    own = {"HOME": str(home), "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
    return plain | own | more


def piped(
    *arguments: str, stdin: str | bytes | int = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with everything in pipes; `stdin` is a text, bytes or a file descriptor."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=None if isinstance(data, int) else data,
        stdin=data if isinstance(data, int) else None,
        capture_output=True,
        env=env,
        timeout=DEADLINE,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def heed_interrupts() -> None:
    """In a new process: a job in the background ignores interrupts, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _take_terminal() -> None:
    heed_interrupts()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command on a pseudo-terminal that it controls, and what it has written so far."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str],
        command: tuple[str, ...] = COMMAND,
        columns: int = 100,
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns)
        self.modes_before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=dict(env),
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self._slave = slave
        self.raw = ""  # everything, with its control sequences
        self._read_until = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int, rows: int = 40) -> None:
        """The program is told by a signal, as a user's window does it."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: str) -> str:
        """Read until the text is on the screen, later than what was waited for before."""
        deadline = time.monotonic() + DEADLINE
        while (found := self.shown.find(text, self._read_until)) < 0:
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(
                    f"{text!r} did not come; the last of it is {self.raw[-1500:]!r}"
                )
        before = self.shown[self._read_until : found]
        self._read_until = found + len(text)
        return before

    def wait_for_more(self) -> None:
        """Read until there is more than what was waited for before."""
        while not self.shown[self._read_until :].strip():
            assert self._read(DEADLINE), f"nothing more came; the last is {self.raw[-1500:]!r}"
        self._read_until = len(self.shown)

    def exit_code(self) -> int:
        """Read to the end and return how the command ended."""
        deadline = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, (
                f"still running; the last of it is {self.raw[-1500:]!r}"
            )
            self._read(0.05)
        while self._read(0):
            pass
        return self.process.returncode

    def modes(self) -> list[Any]:
        """How the terminal treats keys now."""
        return termios.tcgetattr(self._slave)

    @property
    def shown(self) -> str:
        """What was written, without control sequences."""
        return _ESCAPE.sub("", self.raw).replace("\r", "")

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        piece = os.read(self._master, 65536).decode(errors="replace")
        self.raw += piece
        return bool(piece)
