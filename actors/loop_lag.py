"""How late an event loop is: the time between when a timer was due and when it ran."""

import asyncio

PERIOD_S = 0.05


class LoopLag:
    """Measures while it is started; otherwise it costs nothing."""

    def __init__(self) -> None:
        self._worst_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._set(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> float:
        """The longest since it was asked last, in seconds; a timer that is late now counts, too."""
        if self._timer is not None:
            self._note(asyncio.get_running_loop().time() - self._timer.when())
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + PERIOD_S
        self._timer = loop.call_at(due, self._ring, loop, due)

    def _ring(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._note(loop.time() - due)
        self._set(loop)

    def _note(self, late_s: float) -> None:
        self._worst_s = max(self._worst_s, late_s)
