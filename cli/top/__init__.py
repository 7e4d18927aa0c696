"""`engine-cli top`: what a running engine does, now and now again."""

from .command import top

__all__ = ["top"]
