"""The oracle: what the simulated model says next, as a function of every token before it.

The hash of a prefix is h(p) = h(p - 1) * M + token(p) + 1 modulo 2**64, so it can be kept beside
each token in KV memory, and any lost, doubled, stale or misplaced token changes all that follows.
"""

import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

MULTIPLIER = 0x9E3779B97F4A7C15  # odd, from the golden ratio: every bit of a token spreads
MASK = 2**64 - 1
MAX_CHOICES = 10_000  # that are tried for one token

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Oracle:
    """Printable ASCII, with an EOS once in `eos_every` tokens on average (0: never).

    Other weights say something else, and no prefix that was hashed with the old ones is one.
    """

    eos_token_id: int = 256
    eos_every: int = 0
    weights: int = 0

    @property
    def empty(self) -> int:
        """The hash before the first token."""
        return _mix(self.weights) if self.weights else 0

    def with_weights(self, source: str) -> Self:
        """The oracle that these weights make of it."""
        return replace(self, weights=zlib.crc32(source.encode(errors="surrogatepass")))

    def extend(self, prefix: int, token_ids: Iterable[int]) -> list[int]:
        """The hash at each of the tokens that follow a prefix."""
        hashes: list[int] = []
        for token_id in token_ids:
            prefix = (prefix * MULTIPLIER + token_id + 1) & MASK
            hashes.append(prefix)
        return hashes

    def next_token(
        self, prefix: int, *, banned: Sequence[int] = (), allowed: Collection[int] | None = None
    ) -> int:
        """What follows the prefix with this hash: the first of its choices that is allowed and not
        banned. Where no choice of very many is, the smallest such token; -1 where there is none.
        """
        if allowed is not None and not any(map(self._is_spoken, allowed)):
            return min(set(allowed).difference(banned), default=-1)
        for _ in range(MAX_CHOICES):
            prefix = _mix(prefix)
            if self.eos_every and (prefix >> 32) % self.eos_every == 0:
                token_id = self.eos_token_id
            else:
                token_id = 32 + prefix % 95
            if token_id not in banned and (allowed is None or token_id in allowed):
                return token_id
        return min(set(allowed or ()).difference(banned), default=-1)

    def logits(self, prefix: int, vocab_size: int) -> NDArray[np.float32]:
        """What stands for a model's logits behind the prefix with this hash: numbers from 0 to 16
        that depend on it and on the token, and more for what is said next.  # [vocab_size]"""
        mixed = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(MULTIPLIER)
        mixed ^= np.uint64(_mix(prefix))
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(MULTIPLIER)
        logits = (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-20)
        logits[self.next_token(prefix)] += 16
        return logits

    def _is_spoken(self, token_id: int) -> bool:
        return 32 <= token_id < 127 or (token_id == self.eos_token_id and self.eos_every > 0)

    def answer(
        self, prompt: Iterable[int], max_tokens: int, *, stops: Sequence[int] = ()
    ) -> list[int]:
        """What an undisturbed run says: up to `max_tokens`, or to the first of `stops`."""
        hashes = self.extend(self.empty, prompt)
        prefix = hashes[-1] if hashes else self.empty
        said: list[int] = []
        while len(said) < max_tokens:
            said.append(self.next_token(prefix))
            if said[-1] in stops:
                break
            prefix = self.extend(prefix, said[-1:])[0]
        return said


def is_chain(empty: int, token_ids: NDArray[np.int32], hashes: Hashes) -> bool:
    """Whether each hash follows from the one before it and its token, from position 0."""
    before = np.concatenate([np.array([empty], dtype=np.uint64), hashes[:-1]])
    expected = before * np.uint64(MULTIPLIER) + token_ids.astype(np.uint64) + np.uint64(1)
    return bool((expected == hashes).all())


def _mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of splitmix64, Steele, Lea and Flood 2014)."""
    value = (value + MULTIPLIER) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
