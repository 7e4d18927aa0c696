"""Floor 1: which block holds what. Integers and numpy; no torch, no asyncio."""

from .content import prefix_root
from .host import HostTier, SwapCosts
from .pool import BlockPool

__all__ = ["BlockPool", "HostTier", "SwapCosts", "prefix_root"]
