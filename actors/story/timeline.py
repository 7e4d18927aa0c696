"""The timeline: what ran where and when, over a whole log, ready to be drawn. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias, get_args

from ...messages import Generate, LoadWeights, Message, SampleRows, StepPlan
from ..journal import Heard, Turn
from ..kvpool import PoolAnswer, PoolQuestion
from .chronicle import NOBODY, Admission, Chronicle, Growth, SchedulerTurn, Step

About: TypeAlias = dict[str, int | str]

_ANSWERS = get_args(PoolAnswer)
_WITHIN = (*get_args(PoolQuestion), *_ANSWERS, StepPlan, SampleRows, LoadWeights)

DEVICE, WAITING = "device", "waiting"
ACTORS = ("intake", "scheduler", "kvpool", "executor", "detokenizer", "log")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took a while on a track."""

    track: str  # "device", "slot 3", the name of an actor, or "waiting"
    name: str
    begin_ns: int
    end_ns: int
    about: About = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Count:
    """A number that stands until the next one of its name."""

    name: str
    t_ns: int
    value: int


@dataclass(frozen=True, slots=True)
class Flow:
    """From a request's arrival to the step that ran it first."""

    serial: int
    name: str
    arrived_ns: int
    track: str
    began_ns: int


@dataclass(slots=True)
class Timeline:
    """Everything that is drawn; spans of one track do not overlap, but for those that wait."""

    begin_ns: int
    end_ns: int
    spans: list[Span] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)

    @property
    def tracks(self) -> list[str]:
        """Actors, the device, then the slots in their order."""
        names = {span.track for span in self.spans}
        slots = sorted((name for name in names if name.startswith("slot ")), key=_slot)
        return [name for name in (*ACTORS, DEVICE, *slots) if name in names]


def timeline(log: Iterable[Heard], chronicle: Chronicle) -> Timeline:
    """The timeline of a log, of which the chronicle is."""
    turns = list(log)
    begin_ns = min((turn.t_ns for _, turn in turns), default=0)
    drawn = Timeline(begin_ns, max(chronicle.end_ns, begin_ns))
    _draw_turns(drawn, turns, chronicle)
    _draw_steps(drawn, chronicle)
    _draw_waiting(drawn, chronicle)
    _count(drawn, chronicle)
    return drawn


def _draw_turns(drawn: Timeline, turns: list[Heard], chronicle: Chronicle) -> None:
    """A log knows when a turn begins; that of the Scheduler goes on to the last thing it says."""
    place: int | None = None  # of the Scheduler's open turn
    for actor, turn in turns:
        first = turn.envelopes[0].message
        if not isinstance(first, _WITHIN):
            place = None
        elif place is not None:
            drawn.spans[place] = replace(drawn.spans[place], end_ns=turn.t_ns)
        if isinstance(first, _ANSWERS):
            continue
        if actor == "scheduler":
            place = len(drawn.spans)
        others = len(turn.envelopes) - 1
        name = type(first).__name__ + (f" and {others} more" if others else "")
        drawn.spans.append(Span(actor, name, turn.t_ns, turn.t_ns, {"turn": turn.number}))
        if actor == "detokenizer":
            _draw_arrivals(drawn, turn, chronicle)


def _draw_arrivals(drawn: Timeline, turn: Turn[Message], chronicle: Chronicle) -> None:
    for envelope in turn.envelopes:
        if isinstance(envelope.message, Generate):
            request, t_ns = envelope.message, envelope.t_ns
            about: About = {"serial": request.serial, "prompt_tokens": len(request.prompt)}
            drawn.spans.append(Span("intake", chronicle.name(request.serial), t_ns, t_ns, about))


def _draw_steps(drawn: Timeline, chronicle: Chronicle) -> None:
    seen: set[int] = set()
    for step in chronicle.steps.values():
        end_ns = drawn.end_ns if step.done_ns is None else step.done_ns
        about: About = {"rows": len(step.serials), "tokens": step.plan.num_tokens}
        if step.error is not None:
            about["error"] = step.error
        drawn.spans.append(Span(DEVICE, f"step {step.number}", step.began_ns, end_ns, about))
        _draw_rows(drawn, chronicle, step, end_ns, seen)


def _draw_rows(
    drawn: Timeline, chronicle: Chronicle, step: Step, end_ns: int, seen: set[int]
) -> None:
    plan = step.plan
    columns = (plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist())
    for serial, slot, start, length in zip(step.serials.tolist(), *columns, strict=True):
        track, name = f"slot {slot}", chronicle.name(serial)
        about: About = {"step": step.number, "start": start, "tokens": length}
        drawn.spans.append(Span(track, name, step.began_ns, end_ns, about))
        request = chronicle.requests.get(serial)
        if serial != NOBODY and serial not in seen and request is not None:
            seen.add(serial)
            flow = Flow(serial, name, request.arrived_ns, track, step.began_ns)
            drawn.flows.append(flow)


def _draw_waiting(drawn: Timeline, chronicle: Chronicle) -> None:
    """From the arrival to when it was scheduled; and from when somebody gave way to his return."""
    since = {serial: request.arrived_ns for serial, request in chronicle.requests.items()}
    for turn in chronicle.turns:
        for report in turn.reports:
            since.update({preempted.serial: turn.t_ns for preempted in report.preempted})
        gone = [admission.ask.serial for admission in turn.admissions if admission.is_full]
        gone += [ended.serial for report in turn.reports for ended in report.ended]
        for serial in gone:
            since_ns = since.pop(serial, turn.t_ns)
            if since_ns < turn.t_ns:
                about: About = {"serial": serial}
                name = chronicle.name(serial)
                drawn.spans.append(Span(WAITING, name, since_ns, turn.t_ns, about))


def _count(drawn: Timeline, chronicle: Chronicle) -> None:
    live: set[int] = set()
    for turn in chronicle.turns:
        live |= {message.serial for message in turn.heard if isinstance(message, Generate)}
        live |= {admission.ask.serial for admission in turn.admissions}
        live -= {ended.serial for report in turn.reports for ended in report.ended}
        drawn.counts.append(Count("waiting", turn.t_ns, max(len(live) - turn.running, 0)))
        drawn.counts.append(Count("running", turn.t_ns, turn.running))
        free = _free_blocks(turn)
        if free is not None:
            drawn.counts.append(Count("free blocks", turn.t_ns, free))
        for step in turn.steps:
            drawn.counts.append(Count("batch tokens", step.posted_ns, step.plan.num_tokens))


def _free_blocks(turn: SchedulerTurn) -> int | None:
    """What the pool said last in this turn."""
    asked: list[Growth | Admission] = [*turn.growths, *turn.admissions]
    answers = [each.answer for each in asked if each.answer is not None]
    return answers[-1].num_free if answers else None


def _slot(track: str) -> int:
    return int(track.removeprefix("slot "))
