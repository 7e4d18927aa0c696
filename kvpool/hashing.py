"""Chained block hashes: the name of a block's content is its tokens and everything before them.

Keyed blake2b (RFC 7693): without the key nobody can craft a prompt that meets another's block.
"""

import secrets
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

import numpy as np

from ..messages import Ints

BlockHash: TypeAlias = bytes

DIGEST_SIZE = 16  # bytes


def token_bytes(token_ids: Ints) -> bytes:
    """Tokens as little-endian int32: what is hashed, and compared on a hit."""
    data: bytes = token_ids.astype("<i4", copy=False).tobytes()
    return data


class BlockHasher:
    """Hashes blocks of `block_size` tokens with a key of its own, random by default."""

    def __init__(self, block_size: int, key: bytes | None = None) -> None:
        self.block_size = block_size
        self.key = secrets.token_bytes(32) if key is None else key
        self._keyed = blake2b(digest_size=DIGEST_SIZE, key=self.key)  # copied: half the time

    def root(self, salt: bytes = b"") -> BlockHash:
        """The parent of a first block; different salts never share a block."""
        return blake2b(salt, digest_size=DIGEST_SIZE, key=self.key, person=b"root").digest()

    def block(self, parent: BlockHash, tokens: bytes) -> BlockHash:
        """The hash of one full block after `parent`."""
        hashing = self._keyed.copy()
        hashing.update(parent + tokens)
        return hashing.digest()

    def chain(self, token_ids: Ints, salt: bytes = b"") -> tuple[BlockHash, ...]:
        """The hashes of all full blocks of `token_ids`, from position 0."""
        return tuple(self.extend(self.root(salt), token_ids))

    def extend(self, parent: BlockHash, token_ids: Ints) -> Sequence[BlockHash]:
        """The hashes of the full blocks that follow `parent`."""
        size = self.block_size * np.dtype("<i4").itemsize
        tokens = token_bytes(token_ids)
        hashes: list[BlockHash] = []
        for start in range(0, len(tokens) - size + 1, size):
            parent = self.block(parent, tokens[start : start + size])
            hashes.append(parent)
        return hashes
