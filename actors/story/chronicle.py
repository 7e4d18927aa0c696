"""The chronicle: messages put in relation. Which turn asked and planned what, whose row is whose,
when each step ran and was heard of, and what became of every request. Pure.

The Scheduler's questions about blocks, the answers and its plans are turns of their own in a log,
numbered within the turn that said them; what it reports is heard of later. All of it is brought
back here to the turn it belongs to.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from ...messages import (
    AdmitSequence,
    BlocksReserved,
    Finished,
    Generate,
    GrammarReady,
    Grant,
    LoadWeights,
    Longs,
    Message,
    Pause,
    ReserveBlocks,
    Resume,
    SequenceAdmitted,
    StepDone,
    StepFailed,
    StepPlan,
    TokensReady,
    WeightsLoaded,
)
from ..journal import Heard, Turn
from ..kvpool import PoolAnswer, PoolQuestion
from ..opening import Opening
from .story import answer_name

NOBODY = -1
_QUESTIONS, _ANSWERS = get_args(PoolQuestion), get_args(PoolAnswer)


@dataclass(slots=True, eq=False)
class Step:
    """A step from its plan to its result; times are None while they lie ahead."""

    plan: StepPlan
    serials: Longs  # whose each row is
    turn: "SchedulerTurn"  # that planned it
    posted_ns: int
    began_ns: int  # when the device could begin with it: the one before it was done
    done_ns: int | None = None  # when the device posted the result
    heard_ns: int | None = None  # when the turn began that applied it
    error: str | None = None

    @property
    def number(self) -> int:
        return self.plan.step


@dataclass(slots=True, eq=False)
class Growth:
    """Running sequences asked for blocks."""

    ask: ReserveBlocks
    serials: Longs  # who asked
    answer: BlocksReserved | None = None
    gave_way: dict[int, int] = field(default_factory=dict)  # serials, and the blocks each keeps


@dataclass(slots=True, eq=False)
class Admission:
    """A waiting sequence asked to run."""

    ask: AdmitSequence
    answer: SequenceAdmitted | None = None
    gave_way: dict[int, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.answer is not None and self.answer.outcome == Grant.FULL


@dataclass(slots=True, eq=False)
class SchedulerTurn:
    """What the Scheduler heard, asked, planned and reported at once."""

    t_ns: int
    heard: list[Message]
    is_paused: bool  # once it was over, as the following
    awaits_weights: bool
    steps_in_flight: int = 0
    running: int = 0
    voided: bool = False  # other weights are to be loaded: everybody starts again
    growths: list[Growth] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reports: list[TokensReady] = field(default_factory=list)
    reported_ns: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """What the log says of one request as a whole."""

    generate: Generate
    arrived_ns: int
    heard_ns: int | None = None  # when the Scheduler took it
    grammar_ns: int | None = None  # when its grammar was ready
    finished: Finished | None = None


class Chronicle:
    """Everything that a stretch of a log says, in relation.

    Where it has an opening, the requests that are older are known by what Intake said of them.
    """

    def __init__(self, log: Iterable[Heard], opening: Opening | None = None) -> None:
        self.opening = opening
        self.turns: list[SchedulerTurn] = []
        self.steps: dict[int, Step] = {}
        self.requests: dict[int, Request] = {}  # by serial
        self.end_ns = 0
        self._owners: Longs = np.full(64, NOBODY, dtype=np.int64)  # by slot
        if opening is not None:
            self._owners = opening.owners.copy()
        self._asked: Growth | Admission | None = None
        self._firsts: list[int] = []  # the number of the first message each turn said
        self._said_by: list[SchedulerTurn] = []  # parallel: only turns that said something
        self._reports: list[tuple[int, int, TokensReady]] = []  # (number, time, report)
        self._is_paused = self._awaits_weights = False
        self._done_ns = 0  # of the last step that was answered
        for actor, turn in log:
            self._take(actor, turn)
        self._attach_reports()

    def of(self, request_id: str, index: int = 0) -> int | None:
        """The serial of the last request of that id; of its answers, if it wants several, of this
        one."""
        asked = [(serial, request.generate) for serial, request in self.requests.items()]
        serials = [s for s, g in asked if g.request_id == request_id and g.index == index]
        return max(serials, default=None)

    def name(self, serial: int) -> str:
        """What its caller calls a request, and which answer it is where there are several."""
        request = self.requests.get(serial)
        if request is None:
            return f"request {serial}"
        generate = request.generate
        return answer_name(generate.request_id, generate.index, generate.params.n)

    @property
    def reports(self) -> Iterable[tuple[int, TokensReady]]:
        """What was reported, with its time."""
        return ((t_ns, report) for _, t_ns, report in self._reports)

    # Turns, one after another

    def _take(self, actor: str, turn: Turn[Message]) -> None:
        self.end_ns = max(self.end_ns, turn.t_ns)
        first = turn.envelopes[0].message
        if actor == "scheduler" and not isinstance(first, _ANSWERS):
            self._take_scheduler(turn)
            return
        for envelope in turn.envelopes:
            match envelope.message:
                case Generate() as request if actor == "detokenizer":
                    self._request(request).arrived_ns = envelope.t_ns
                case TokensReady() as report:
                    self._reports.append((envelope.seq, envelope.t_ns, report))
                case Finished() as finished if finished.serial in self.requests:
                    self.requests[finished.serial].finished = finished
                case message if self.turns:
                    self._take_said(envelope.seq, message, turn.t_ns)

    def _take_scheduler(self, turn: Turn[Message]) -> None:
        heard = [envelope.message for envelope in turn.envelopes]
        for envelope in turn.envelopes:
            match envelope.message:
                case Generate() as request:
                    self._request(request, envelope.t_ns).heard_ns = turn.t_ns
                case GrammarReady(serial=serial) if serial in self.requests:
                    self.requests[serial].grammar_ns = turn.t_ns
                case StepDone() | StepFailed() as result:
                    self._answer(result, envelope.t_ns, turn.t_ns)
                case Pause():
                    self._is_paused = True
                case Resume():
                    self._is_paused = False
                case WeightsLoaded():
                    self._awaits_weights = False
                case _:
                    pass
        self.turns.append(SchedulerTurn(turn.t_ns, heard, self._is_paused, self._awaits_weights))

    def _request(self, generate: Generate, t_ns: int = 0) -> Request:
        return self.requests.setdefault(generate.serial, Request(generate, t_ns))

    def _answer(self, result: StepDone | StepFailed, done_ns: int, heard_ns: int) -> None:
        step = self.steps.get(result.step)
        if step is not None:
            step.began_ns = max(step.posted_ns, self._done_ns)
            step.done_ns, step.heard_ns = done_ns, heard_ns
            step.error = result.error if isinstance(result, StepFailed) else None
        self._done_ns = done_ns

    def _take_said(self, seq: int, message: Message, t_ns: int) -> None:
        """What the Scheduler said within its last turn, and what it was answered."""
        now = self.turns[-1]
        match message:
            case ReserveBlocks():
                self._asked = growth = Growth(message, self._who(message.slots))
                now.growths.append(growth)
            case AdmitSequence():
                self._asked = admission = Admission(message)
                now.admissions.append(admission)
            case BlocksReserved() | SequenceAdmitted():
                self._take_answer(message)
            case StepPlan():
                self._take_plan(now, message, t_ns)
            case LoadWeights():
                now.voided = now.awaits_weights = self._awaits_weights = True
            case _ if not isinstance(message, _QUESTIONS):
                return
            case _:
                pass
        if not self._said_by or self._said_by[-1] is not now:
            self._said_by.append(now)
            self._firsts.append(seq)

    def _take_answer(self, answer: BlocksReserved | SequenceAdmitted) -> None:
        asked = self._asked
        if asked is None:
            return
        gave_way = self._who(answer.preempted).tolist()
        asked.gave_way = dict(zip(gave_way, answer.kept.tolist(), strict=True))
        if isinstance(asked, Growth) and isinstance(answer, BlocksReserved):
            asked.answer = answer
        elif isinstance(asked, Admission) and isinstance(answer, SequenceAdmitted):
            asked.answer = answer
            if answer.outcome == Grant.FULL:
                self._own(asked.ask.slot, asked.ask.serial)
        self._asked = None

    def _take_plan(self, now: SchedulerTurn, plan: StepPlan, t_ns: int) -> None:
        step = Step(plan, self._who(plan.slots), now, t_ns, max(t_ns, self._done_ns))
        self.steps[plan.step] = step
        now.steps.append(step)

    def _who(self, slots: Longs) -> Longs:
        if len(slots) and slots.max() >= len(self._owners):
            self._own(int(slots.max()), NOBODY)
        return self._owners[slots]

    def _own(self, slot: int, serial: int) -> None:
        missing = slot + 1 - len(self._owners)
        if missing > 0:
            more = np.full(missing + len(self._owners), NOBODY, dtype=np.int64)
            self._owners = np.concatenate((self._owners, more))
        self._owners[slot] = serial

    # Reports, and what they change

    def _attach_reports(self) -> None:
        """A report comes after all that its turn asked and planned, and before the next turn says
        anything."""
        for seq, t_ns, report in self._reports:
            place = bisect_left(self._firsts, seq) - 1
            if place >= 0:
                turn = self._said_by[place]
                turn.reports.append(report)
                turn.reported_ns = t_ns
        running: set[int] = set() if self.opening is None else set(self.opening.running.tolist())
        posted: set[int] = set()
        for turn in self.turns:
            results = [m.step for m in turn.heard if isinstance(m, (StepDone, StepFailed))]
            posted.difference_update(results)
            posted.update(step.number for step in turn.steps)
            turn.steps_in_flight = len(posted)
            running -= {p.serial for report in turn.reports for p in report.preempted}
            running |= {admission.ask.serial for admission in turn.admissions if admission.is_full}
            running -= {e.serial for report in turn.reports for e in report.ended}
            running = set() if turn.voided else running
            turn.running = len(running)
