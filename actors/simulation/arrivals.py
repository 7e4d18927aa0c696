"""Arrivals: traces drawn at random, one seed one trace."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...messages import ConfigError
from .trace import MAX_SECONDS, MAX_TOKENS, TraceRequest

MAX_REQUESTS = 20_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A number of tokens: uniformly from `least` to `most`, both included."""

    least: int
    most: int

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        return rng.integers(self.least, self.most, size=count, endpoint=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests at `rate` per second on average, as a Poisson process of groups of `burst`.

    Raises ConfigError where the numbers make no sense.
    """

    rate: float
    duration: float = 60.0  # seconds
    burst: int = 1  # requests that come at the same moment
    prompt_tokens: Lengths = Lengths(512, 512)
    output_tokens: Lengths = Lengths(128, 128)
    seed: int = 0

    def __post_init__(self) -> None:
        limits = (("rate", self.rate, 1e6), ("duration", self.duration, MAX_SECONDS))
        for name, value, most in limits:
            if not 0 < value <= most:
                raise ConfigError(f"{name} is {value}; it must be above 0 and at most {most:,.0f}")
        if not 1 <= self.burst <= MAX_REQUESTS:
            raise ConfigError(f"burst is {self.burst!r}; it must be from 1 to {MAX_REQUESTS:,}")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed!r}; it must be at least 0")
        if self.rate * self.duration > MAX_REQUESTS:
            raise ConfigError(
                f"rate times duration is {self.rate * self.duration:,.0f} requests; "
                f"it must be at most {MAX_REQUESTS:,}"
            )
        for name, lengths in (
            ("prompt_tokens", self.prompt_tokens),
            ("output_tokens", self.output_tokens),
        ):
            if not 1 <= lengths.least <= lengths.most <= MAX_TOKENS:
                raise ConfigError(
                    f"{name} is {lengths.least}-{lengths.most}; it must be N or N-M, "
                    "at least one token and in this order"
                )

    def draw(self) -> list[TraceRequest]:
        """The requests, in the order of arrival; at least one."""
        rng = np.random.default_rng(self.seed)
        times = self._times(rng).repeat(self.burst)
        prompts = self.prompt_tokens.draw(rng, len(times))
        outputs = self.output_tokens.draw(rng, len(times))
        columns = zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
        return [TraceRequest(*row) for row in columns]

    def _times(self, rng: np.random.Generator) -> NDArray[np.float64]:
        gap = self.burst / self.rate
        first = rng.exponential(gap)
        times = [np.array([min(first, self.duration)])]
        while times[-1][-1] < self.duration:
            gaps = rng.exponential(gap, size=10_000)
            times.append(times[-1][-1] + gaps.cumsum())
        joined = np.concatenate(times)
        return joined[: max(1, int(np.searchsorted(joined, self.duration)))]
