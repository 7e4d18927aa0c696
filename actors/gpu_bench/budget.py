"""Budget: the time that all runs together may take."""

import time
from collections.abc import Callable


class Budget:
    """Counts from when it is made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = seconds
        self._clock = clock
        self._began = clock()

    @property
    def left(self) -> float:
        """Seconds; below 0 where it is overdrawn."""
        return self.seconds - (self._clock() - self._began)

    def why_not(self, seconds: float) -> str | None:
        """Why a run of about so many seconds is not begun; None where it fits."""
        if seconds <= self.left:
            return None
        return f"it takes about {seconds:.0f} s, and {max(self.left, 0):.0f} of the budget are left"
