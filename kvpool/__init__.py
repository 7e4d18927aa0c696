"""Floor 1: which block holds what. Integers and numpy; no torch, no asyncio."""

from .content import prefix_root
from .pool import BlockPool

__all__ = ["BlockPool", "prefix_root"]
