"""How a chat may look on its terminal: in colour, or as plain text."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..output import is_plain, write
from ..terminal_size import terminal_size
from . import highlight
from .painter import Painter


class Screen(Protocol):
    """Where one answer is shown."""

    def show(self, piece: str) -> None: ...

    def finish(self) -> None: ...

    def displace(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Look:
    """What is decorated; plain text has no control bytes at all."""

    is_coloured: bool

    @classmethod
    def of_terminal(cls, *, plain: bool) -> "Look":
        return cls(is_coloured=not plain and not is_plain())

    def screen(self) -> Screen:
        return Painter(write, terminal_size) if self.is_coloured else _Plain(write)

    def dim(self, text: str) -> str:
        return highlight.styled(text, highlight.DIM) if self.is_coloured else text


class _Plain:
    """As it comes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.show = write

    def finish(self) -> None:
        pass

    def displace(self) -> None:
        pass
