"""Phases: a stretch of time, cut where something turned. Pure."""

from .story import Phase, PhaseSpan


class Phases:
    """Begins in the queue; every moment is in exactly one phase."""

    def __init__(self, begin_ns: int) -> None:
        self.phase = Phase.QUEUE
        self._since_ns = self._begin_ns = begin_ns
        self._turns: list[tuple[int, Phase]] = []  # when each phase but the last ended

    def turn_to(self, phase: Phase, t_ns: int) -> None:
        """From then on, unless something later has turned already."""
        self._since_ns = max(t_ns, self._since_ns)
        self._turns.append((self._since_ns, self.phase))
        self.phase = phase

    def until(self, end_ns: int) -> tuple[PhaseSpan, ...]:
        """The spans up to the end, in order. What took no time is not told, and what goes on is
        one span."""
        end_ns = max(end_ns, self._begin_ns)
        spans: list[PhaseSpan] = []
        since_ns = self._begin_ns
        for t_ns, phase in [*self._turns, (end_ns, self.phase)]:
            t_ns = min(t_ns, end_ns)
            if t_ns == since_ns:
                continue
            span = PhaseSpan(phase, since_ns, t_ns)
            if spans and spans[-1].phase == phase:
                span = PhaseSpan(phase, spans.pop().begin_ns, t_ns)
            spans.append(span)
            since_ns = t_ns
        return tuple(spans) or (PhaseSpan(self.phase, end_ns, end_ns),)
