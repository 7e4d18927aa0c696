"""`engine-cli chat`: a conversation on a terminal, or one quiet answer anywhere else."""

from .command import chat

__all__ = ["chat"]
