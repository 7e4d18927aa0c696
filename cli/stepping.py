"""Walking through a replay: message by message, with the state of any sequence and block."""

import dataclasses
import reprlib
from typing import TYPE_CHECKING, Any

import numpy as np

from .output import write

if TYPE_CHECKING:
    from ..actors.cores import Cores
    from ..actors.journal import Envelope

HELP = """\
Enter        the next message          N    on to message N
seq SERIAL   where a sequence stands   block N    where a block is
live         who runs and who waits    more       all of this message
rest         on without stopping       quit       leave
"""


class Stepper:
    """What watches a replay: it shows each message, and asks what to look at before it is applied.

    At the end of its input it lets the rest run.
    """

    def __init__(self) -> None:
        self._next = 0  # the number of the message at which to stop
        self._is_free = False

    def __call__(self, actor: str, envelope: "Envelope[Any]", cores: "Cores") -> bool:
        if self._is_free or envelope.seq < self._next:
            return True
        write(f"{envelope.seq:>7}  {envelope.t_ns / 1e9:12.6f} s  {actor:<12}{_brief(envelope)}\n")
        while True:
            try:
                words = input("> ").split()
            except EOFError:
                self._is_free = True
                return True
            match words:
                case []:
                    return True
                case ["quit" | "q"]:
                    return False
                case ["rest"]:
                    self._is_free = True
                    return True
                case [number] if number.isdecimal():
                    self._next = int(number)
                    return True
                case _:
                    write(self._look(words, envelope, cores))

    @staticmethod
    def _look(words: list[str], envelope: "Envelope[Any]", cores: "Cores") -> str:
        from ..actors.recording.looking import live_serials, look_at_block, look_at_sequence

        match words:
            case ["live"]:
                running, waiting = live_serials(cores)
                return f"runs: {_listed(running)}\nwaits: {_listed(waiting)}\n"
            case ["more"]:
                return _fields(envelope.message)
            case ["seq", number] if number.isdecimal():
                sequence = look_at_sequence(cores, int(number))
                return _fields(sequence) if sequence else f"no sequence {number} is live\n"
            case ["block", number] if number.isdecimal():
                block = look_at_block(cores, int(number))
                return _fields(block) if block else f"there is no block {number}\n"
            case _:
                return HELP


def _listed(serials: list[int]) -> str:
    return ", ".join(map(str, serials)) or "nobody"


def _brief(envelope: "Envelope[Any]") -> str:
    """The type of a message, and the few of its fields that are single values."""
    message = envelope.message
    values = [(field.name, getattr(message, field.name)) for field in dataclasses.fields(message)]
    single = [f"{name}={value!r}" for name, value in values if isinstance(value, (int, str))]
    return f"{type(message).__name__}({', '.join(single)})"


def _fields(value: Any) -> str:
    lines = [
        f"  {field.name:<14}{_short(getattr(value, field.name))}\n"
        for field in dataclasses.fields(value)
    ]
    return "".join(lines) or "  nothing\n"


def _short(value: Any) -> str:
    text = reprlib.Repr()
    text.maxlist = text.maxtuple = 64
    text.maxother = text.maxstring = 200
    return text.repr(value.tolist() if isinstance(value, np.ndarray) else value)
