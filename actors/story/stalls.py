"""Why a token came late: what happened between it and the one before. Pure."""

from collections.abc import Iterator

from ...messages import Grant
from .chronicle import Chronicle, Step
from .life import Life
from .story import Cause, Phase, PhaseSpan, Wait
from .waiting import Waiting, add_wait


class Stalls:
    """Accounts for any stretch of one request's time after its first token."""

    def __init__(
        self, chronicle: Chronicle, life: Life, waiting: Waiting, phases: tuple[PhaseSpan, ...]
    ) -> None:
        self._chronicle = chronicle
        self._life = life
        self._waiting = waiting
        self._preempted = [span for span in phases if span.phase == Phase.PREEMPTED]
        self._own = {step.number for step, _, _ in life.rows}
        self._steps = [step for step in chronicle.steps.values() if step.done_ns is not None]

    def between(self, begin_ns: int, end_ns: int) -> tuple[Wait, ...]:
        """What the time went into, without a gap."""
        waits: list[Wait] = []
        for span in self._preempted:
            until_ns = min(span.begin_ns, end_ns)
            if span.end_ns <= begin_ns or until_ns >= end_ns:
                continue
            self._add_running(waits, begin_ns, until_ns)
            begin_ns, until_ns = max(span.begin_ns, begin_ns), min(span.end_ns, end_ns)
            for wait in self._waiting.between(begin_ns, until_ns):
                add_wait(waits, wait)
            begin_ns = until_ns
        self._add_running(waits, begin_ns, end_ns)
        return tuple(waits)

    def _add_running(self, waits: list[Wait], begin_ns: int, end_ns: int) -> None:
        """While it runs it waits for steps, or for the host between them."""
        for step in self._steps:
            done_ns = step.done_ns or 0
            if done_ns <= begin_ns or step.began_ns >= end_ns:
                continue
            self._add_idle(waits, begin_ns, step.began_ns)
            begin_ns, until_ns = max(begin_ns, step.began_ns), min(done_ns, end_ns)
            cause, detail = self._of(step)
            add_wait(waits, Wait(cause, begin_ns, until_ns, detail))
            begin_ns = until_ns
        self._add_idle(waits, begin_ns, end_ns)

    def _add_idle(self, waits: list[Wait], begin_ns: int, end_ns: int) -> None:
        """No step is on the device."""
        add_wait(waits, Wait(self._idle_cause(begin_ns), begin_ns, end_ns))

    def _idle_cause(self, t_ns: int) -> Cause:
        before = [turn for turn in self._chronicle.turns if turn.t_ns <= t_ns][-1:]
        if before and before[0].is_paused:
            return Cause.PAUSE
        return Cause.WEIGHTS if before and before[0].awaits_weights else Cause.HOST

    def _of(self, step: Step) -> tuple[Cause, str]:
        tokens = step.plan.num_tokens
        size = f"step {step.number} of {tokens} token{'s' * (tokens != 1)}"
        if step.error is not None:
            return Cause.DEVICE, f"{size} failed: {step.error}"
        largest = ", ".join(self._largest(step))
        size += f", {largest}" if largest else ""
        if step.number in self._own:
            return Cause.DEVICE, size
        for growth in step.turn.growths:
            asked = growth.serials == self._life.serial
            if growth.answer is not None and asked.any():
                outcome = int(growth.answer.outcomes[asked][0])
                if outcome != Grant.FULL:
                    return Cause.BLOCKS, f"{size}, without it: it lacks a block"
        return Cause.DEVICE, f"{size}, without it"

    def _largest(self, step: Step) -> Iterator[str]:
        """The rows of others that compute more than a token, the longest first."""
        order = step.plan.lengths.argsort(kind="stable")[::-1].tolist()
        for row in order[:2]:
            serial, length = int(step.serials[row]), int(step.plan.lengths[row])
            if length > 1 and serial != self._life.serial:
                yield f"{length} of them of {self._chronicle.name(serial)}"
