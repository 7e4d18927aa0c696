"""How a live engine gets other weights."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReloadWeights:
    """Complete what is in flight, then have weights loaded and start again: API → Scheduler."""

    source: str  # what the device is to load


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """No step is in flight, and nothing computed so far counts: Scheduler → Executor."""

    source: str


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """The device has the weights, or has kept what it had: Executor → Scheduler, API."""

    source: str
    error: str | None = None  # why it has kept them
