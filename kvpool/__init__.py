"""Floor 1: which block holds what. Integers and numpy; no torch, no asyncio."""

from .hashing import BlockHash, BlockHasher, token_bytes
from .pool import BlockPool

__all__ = ["BlockHash", "BlockHasher", "BlockPool", "token_bytes"]
