"""A life: what of a chronicle concerns one request, found once. Pure."""

from dataclasses import dataclass

from ...messages import Admitted, Ended, StepDone, StepFailed
from .chronicle import Admission, Chronicle, Growth, SchedulerTurn, Step

MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """Why somebody had to wait again, and what was left to it."""

    by: tuple[str, ...]
    why: str
    kept_tokens: int  # positions whose KV it keeps


class Life:
    """The rows, tokens, admissions and preemptions of one request."""

    def __init__(self, chronicle: Chronicle, serial: int, block_size: int) -> None:
        self.serial = serial
        self.request = chronicle.requests[serial]
        self.admitted: Admitted | None = None  # for the first time
        self.ended: Ended | None = None
        self.rows: list[tuple[Step, int, int]] = []  # (step, start, length)
        self.admissions: list[tuple[SchedulerTurn, Admission]] = []
        self.losses: list[tuple[SchedulerTurn, Loss]] = []
        self._chronicle = chronicle
        self._block_size = block_size
        self._times_ns: list[int] = []  # of every token that was sampled for it
        self._ended_ns: int | None = None
        self._find_rows()
        self._find_tokens()
        for turn in chronicle.turns:
            self._find_in(turn)

    # Facts

    @property
    def is_over(self) -> bool:
        return self.request.finished is not None or self.ended is not None

    @property
    def end_ns(self) -> int:
        """When its caller heard the end of it; of who is live, when the chronicle ends."""
        finished = self.request.finished
        if finished is not None:
            return self.request.arrived_ns + round(finished.timings.total_s * 1e9)
        return self._chronicle.end_ns if self._ended_ns is None else self._ended_ns

    @property
    def began_before(self) -> bool:
        """Whether it was scheduled for the first time before the chronicle begins."""
        if self._chronicle.opening is None or self.admitted is not None:
            return False
        return self.ran_at_opening or bool(self.admissions or self.losses or self._times_ns)

    @property
    def ran_at_opening(self) -> bool:
        opening = self._chronicle.opening
        return opening is not None and self.serial in opening.running

    @property
    def cached_tokens(self) -> int:
        """Of its prompt, found when it was first scheduled."""
        if self.admitted is not None:
            return self.admitted.cached_tokens
        finished = self.request.finished
        return 0 if finished is None else finished.usage.cached_tokens

    @property
    def sampled_tokens(self) -> int:
        return len(self._times_ns)

    @property
    def completion_tokens(self) -> int:
        """Tokens that its caller got: what was sampled behind a stop string does not count."""
        finished = self.request.finished
        return self.sampled_tokens if finished is None else finished.usage.completion_tokens

    @property
    def token_times_ns(self) -> list[int]:
        """When each of them was posted."""
        if self.began_before:
            return self._times_ns  # the first of them are not there
        return self._times_ns[: self.completion_tokens]

    # Finding it

    def _find_rows(self) -> None:
        for step in self._chronicle.steps.values():
            for row in (step.serials == self.serial).nonzero()[0].tolist():
                self.rows.append((step, int(step.plan.starts[row]), int(step.plan.lengths[row])))

    def _find_tokens(self) -> None:
        for t_ns, report in self._chronicle.reports:
            self._times_ns += [t_ns] * int((report.serials == self.serial).sum())
            for admitted in report.admitted:
                if admitted.serial == self.serial:
                    self.admitted = admitted
            for ended in report.ended:
                if ended.serial == self.serial:
                    self.ended, self._ended_ns = ended, t_ns

    def _find_in(self, turn: SchedulerTurn) -> None:
        for admission in turn.admissions:
            if admission.ask.serial == self.serial and admission.is_full:
                self.admissions.append((turn, admission))
        if turn.voided and self._runs:
            self.losses.append((turn, Loss((), "other weights are loaded", 0)))
        for report in turn.reports:
            if any(preempted.serial == self.serial for preempted in report.preempted):
                self.losses.append((turn, self._loss(turn)))

    @property
    def _runs(self) -> bool:
        was_there = self.ran_at_opening
        return len(self.admissions) + was_there > len(self.losses)

    def _loss(self, turn: SchedulerTurn) -> Loss:
        """Whose need, or what failure, it gave way to."""
        for message in turn.heard:
            if isinstance(message, StepFailed):
                return Loss((), f"step {message.step} failed: {message.error}", 0)
            if isinstance(message, StepDone) and message.failed:
                return Loss((), f"a row of step {message.step} failed whose blocks it had found", 0)
        asks: list[Growth | Admission] = [*turn.growths, *turn.admissions]
        for asked in asks:
            if self.serial in asked.gave_way:
                names = self._who_asked(asked)
                kept = asked.gave_way[self.serial] * self._block_size
                return Loss(names, "blocks were needed", min(kept, self._reach(turn)))
        seated = tuple(
            self._chronicle.name(admission.ask.serial)
            for admission in turn.admissions
            if admission.is_full
        )
        return Loss(seated, "its seat was needed", self._reach(turn))

    def _who_asked(self, asked: Growth | Admission) -> tuple[str, ...]:
        if isinstance(asked, Admission):
            return (self._chronicle.name(asked.ask.serial),)
        serials = [s for s in asked.serials.tolist() if s not in asked.gave_way]
        return tuple(map(self._chronicle.name, serials))[:MOST_NAMES]

    def _reach(self, turn: SchedulerTurn) -> int:
        """How far it was computed, or was going to be."""
        ends = [start + length for step, start, length in self.rows if step.posted_ns < turn.t_ns]
        return ends[-1] if ends else 0
