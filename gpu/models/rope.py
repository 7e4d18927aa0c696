"""Rotary position embedding: the frequencies of every scaling, and their cosines and sines.

Frequencies are fixed when a model is opened. Where a scaling depends on the length of a sequence
(dynamic, longrope) the configured context stands for it, so that a token's keys do not depend on
what else is in the batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...messages import Floats, ModelError

_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_ALIASES = {"su": "longrope", "none": "default"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One model's rotary embedding, whichever spelling its configuration used."""

    kind: str  # one of _KINDS
    theta: float
    max_positions: int  # max_position_embeddings as configured
    original_context: int  # positions before any scaling
    states_original: bool = False  # whether the configuration says so itself
    factor: float = 1.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    divisors: tuple[float, ...] | None = None  # GGUF writes llama3's scaling out per frequency

    @classmethod
    def from_fields(
        cls,
        fields: Mapping[str, object],
        *,
        theta: float,
        max_positions: int,
        original: object = None,
        divisors: tuple[float, ...] | None = None,
    ) -> "RopeConfig":
        """Read a rope_parameters or rope_scaling object. Raises ModelError on contradictions."""
        kind = _kind(fields)
        read = _Numbers(fields)
        stated = fields.get("original_max_position_embeddings") or original
        given = stated or max_positions
        if not isinstance(given, int):
            raise ModelError(f"rope original_max_position_embeddings is {given!r}, not a number")
        factor = read.optional("factor")
        if factor is None:
            if kind in ("linear", "dynamic", "llama3"):
                raise ModelError(f"rope scaling {kind!r} lacks its factor")
            factor = max_positions / given
        return cls(
            kind=kind,
            theta=read.optional("rope_theta") or theta,
            max_positions=max_positions,
            original_context=given,
            states_original=stated is not None,
            factor=factor,
            attention_factor=read.optional("attention_factor"),
            beta_fast=read.optional("beta_fast") or 32.0,
            beta_slow=read.optional("beta_slow") or 1.0,
            mscale=read.optional("mscale"),
            mscale_all_dim=read.optional("mscale_all_dim"),
            truncate=fields.get("truncate", True) is not False,
            low_freq_factor=read.optional("low_freq_factor") or 1.0,
            high_freq_factor=read.optional("high_freq_factor") or 4.0,
            short_factors=read.many("short_factor"),
            long_factors=read.many("long_factor"),
            divisors=divisors,
        )

    @property
    def context_length(self) -> int:
        """Positions the model is meant for.

        `max_position_embeddings` counts as already scaled, with two exceptions: a yarn model
        that states its original context reaches at least factor times that, and dynamic scaling is
        always stated from the original.
        """
        if self.kind == "dynamic":
            return int(self.max_positions * self.factor)
        if self.kind == "yarn" and self.states_original:
            return max(self.max_positions, int(self.original_context * self.factor))
        return self.max_positions

    def frequencies(self, head_dim: int, context: int) -> Floats:
        """Inverse frequencies for sequences of up to `context` positions.  # [head_dim / 2]"""
        exponents: Floats = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        theta = self.theta
        if self.kind == "dynamic":
            stretch = self.factor * max(context, self.max_positions) / self.max_positions
            theta *= (stretch - (self.factor - 1)) ** (head_dim / (head_dim - 2))
        frequencies: Floats = 1.0 / (theta**exponents)
        if self.kind == "linear":
            frequencies /= np.float32(self.factor)
        elif self.kind == "yarn":
            frequencies = self._yarn(frequencies, head_dim)
        elif self.kind == "llama3":
            frequencies = self._llama3(frequencies)
        elif self.kind == "longrope":
            factors = self.long_factors if context > self.original_context else self.short_factors
            frequencies = frequencies / _factors(factors, head_dim)
        if self.divisors is not None:
            frequencies = frequencies / _factors(self.divisors, head_dim)
        return frequencies

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by, so that attention keeps its sharpness."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        if self.kind == "longrope":
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original_context))
        if self.mscale and self.mscale_all_dim:
            return _yarn_scale(self.factor, self.mscale) / _yarn_scale(
                self.factor, self.mscale_all_dim
            )
        return _yarn_scale(self.factor, 1.0)

    def turns(self, head_dim: int, context: int) -> tuple[Floats, Floats]:
        """Cosines and sines of every position's angles.  # two of [context, head_dim / 2]"""
        angles = np.outer(np.arange(context, dtype=np.float32), self.frequencies(head_dim, context))
        magnitude = np.float32(self.magnitude)
        return np.cos(angles) * magnitude, np.sin(angles) * magnitude

    def _yarn(self, frequencies: Floats, head_dim: int) -> Floats:
        """Slow frequencies are interpolated, fast ones kept, with a ramp between."""
        low = self._dimension_turning(self.beta_fast, head_dim)
        high = self._dimension_turning(self.beta_slow, head_dim)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        if low == high:
            high += 0.001
        ramp: Floats = (np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low)
        slow = ramp.clip(0, 1)
        mixed: Floats = frequencies / self.factor * slow + frequencies * (1 - slow)
        return mixed

    def _dimension_turning(self, turns: float, head_dim: int) -> float:
        """The dimension whose wave turns that often within the original context."""
        period = self.original_context / (turns * 2 * math.pi)
        return head_dim * math.log(period) / (2 * math.log(self.theta))

    def _llama3(self, frequencies: Floats) -> Floats:
        """Long waves are interpolated, short ones kept, and those between are blended."""
        wavelengths = 2 * math.pi / frequencies
        longest = self.original_context / self.low_freq_factor
        shortest = self.original_context / self.high_freq_factor
        kept = (self.original_context / wavelengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        blended = (1 - kept) * frequencies / self.factor + kept * frequencies
        scaled = np.where(wavelengths > longest, frequencies / self.factor, blended)
        return np.where(wavelengths < shortest, frequencies, scaled)


def _yarn_scale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0


def _factors(factors: tuple[float, ...], head_dim: int) -> Floats:
    if len(factors) != head_dim // 2:
        raise ModelError(f"rope scaling has {len(factors)} factors; {head_dim // 2} were expected")
    return np.array(factors, dtype=np.float32)


def _kind(fields: Mapping[str, object]) -> str:
    """The scaling's name under either key. Both with different values contradict each other."""
    names = {str(fields[key]) for key in ("rope_type", "type") if fields.get(key) is not None}
    kinds = {_ALIASES.get(name, name) for name in names}
    if len(kinds) > 1:
        raise ModelError(
            f"rope_type {fields['rope_type']!r} and type {fields['type']!r} contradict each other"
        )
    kind = kinds.pop() if kinds else "default"
    if kind not in _KINDS:
        raise ModelError(f"rope scaling {kind!r} is unknown; known are {', '.join(_KINDS)}")
    return kind


class _Numbers:
    """Typed look-ups in a rope object."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def optional(self, name: str) -> float | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(f"rope {name} is {value!r}; it must be a number")
        return float(value)

    def many(self, name: str) -> tuple[float, ...]:
        value = self._fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(v, (int, float)) for v in value):
            raise ModelError(f"rope {name} is {value!r}; it must be a list of numbers")
        return tuple(float(v) for v in value)
