"""`engine-cli doctor`: can an engine run here, on what, and if not, what is to be done."""

from .command import doctor

__all__ = ["doctor"]
