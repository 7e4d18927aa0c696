"""Phases: a stretch of time, cut where something turned. Pure."""

from .story import Phase, PhaseSpan


class Phases:
    """Begins in the queue; every moment is in exactly one phase."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.phase = Phase.QUEUE
        self._since_ns = begin_ns
        self._end_ns = max(begin_ns, end_ns)
        self._spans: list[PhaseSpan] = []

    def turn_to(self, phase: Phase, t_ns: int) -> None:
        """From then on, as far as that is not before the last turn nor after the end."""
        self._close(min(max(t_ns, self._since_ns), self._end_ns))
        self.phase = phase

    def all(self) -> tuple[PhaseSpan, ...]:
        """The spans, in order."""
        self._close(self._end_ns)
        return tuple(self._spans) or (PhaseSpan(self.phase, self._end_ns, self._end_ns),)

    def _close(self, t_ns: int) -> None:
        """What took no time is not told, and what goes on is one span."""
        if t_ns == self._since_ns:
            return
        span = PhaseSpan(self.phase, self._since_ns, t_ns)
        if self._spans and self._spans[-1].phase == self.phase:
            span = PhaseSpan(self.phase, self._spans.pop().begin_ns, t_ns)
        self._spans.append(span)
        self._since_ns = t_ns
