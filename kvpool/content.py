"""How content is named: by what stands before it and its own tokens."""

from typing import TypeAlias

from ..messages import Ints

Before: TypeAlias = int | bytes
"""What precedes a block: the content id of the block before it, or the root of a first block."""

Key: TypeAlias = tuple[Before, bytes]

TOKEN_BYTES = 4


def prefix_root(cache_salt: bytes, adapter: bytes = b"") -> bytes:
    """What stands before a first block: every salt and every adapter has a tree of its own.

    The salt's length comes first, so that no pair of keys reads like another.
    """
    return len(cache_salt).to_bytes(8, "little") + cache_salt + adapter


def token_bytes(token_ids: Ints) -> bytes:
    """Tokens as little-endian int32: what a block's content is compared by."""
    data: bytes = token_ids.astype("<i4", copy=False).tobytes()
    return data


def content_pieces(token_ids: Ints, block_size: int) -> list[bytes]:
    """What each of these full blocks holds, as contents are compared."""
    data, width = token_bytes(token_ids), block_size * TOKEN_BYTES
    return [data[start : start + width] for start in range(0, len(data), width)]
