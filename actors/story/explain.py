"""Explain: from a chronicle to the story of one of its requests. Pure."""

from itertools import pairwise
from statistics import median

from ...messages import Ended
from ..batching import BatchLimits
from .chronicle import Chronicle, Step
from .life import Life
from .phases import Phases
from .stalls import Stalls
from .story import (
    Arrived,
    Chunk,
    Event,
    FirstToken,
    GaveWay,
    Over,
    Phase,
    PhaseSpan,
    Stall,
    Started,
    Story,
    TokenAccount,
    Waited,
    WentOn,
)
from .waiting import Waiting

STALL_GAPS = 3  # median gaps between two tokens that make a stall, unless a time is given


def explain(
    chronicle: Chronicle, serial: int, limits: BatchLimits, *, stall_s: float | None = None
) -> Story:
    """What happened to a request, up to where the chronicle ends. Raises LookupError for one that
    it says nothing of."""
    if serial not in chronicle.requests:
        raise LookupError(f"the log says nothing of request {serial}")
    life = Life(chronicle, serial, limits.block_size)
    return _Explanation(chronicle, life, limits, stall_s).story()


class _Explanation:
    def __init__(
        self, chronicle: Chronicle, life: Life, limits: BatchLimits, stall_s: float | None
    ) -> None:
        self._chronicle = chronicle
        self._life = life
        self._waiting = Waiting(chronicle, limits, life.request)
        times = life.token_times_ns
        self._gaps = [later - earlier for earlier, later in pairwise(times)]
        usual = int(median(self._gaps)) * STALL_GAPS if self._gaps else 0
        self._stall_ns = usual if stall_s is None else int(stall_s * 1e9)

    def story(self) -> Story:
        life, generate = self._life, self._life.request.generate
        chunks, tokens = self._chunks()
        turning = [*self._arrival(), *self._preemptions(), *self._admissions(), *self._first()]
        turning = sorted(turning, key=_time)
        phases = self._phases(turning)
        events = [*self._with_waits(turning, phases), *chunks, *self._stalls(phases), *self._over()]
        gaps = sorted(self._gaps)
        return Story(
            request_id=generate.request_id,
            index=generate.index,
            answers=generate.params.n,
            serial=life.serial,
            is_over=life.is_over,
            phases=phases,
            events=tuple(sorted(events, key=_time)),
            tokens=tokens,
            gap_p50_ns=gaps[(len(gaps) - 1) // 2] if gaps else None,
            gap_max_ns=gaps[-1] if gaps else None,
        )

    # What happened

    def _arrival(self) -> list[Event]:
        request = self._life.request
        generate = request.generate
        return [Arrived(request.arrived_ns, len(generate.prompt), generate.priority)]

    def _admissions(self) -> list[Event]:
        """The waits before each are found once it is known since when it waited."""
        events: list[Event] = []
        for turn, admission in self._life.admissions:
            answer = admission.answer
            assert answer is not None
            if not events and not self._life.began_before:
                events.append(Started(turn.t_ns, answer.cached_tokens, answer.account, ()))
            else:
                events.append(WentOn(turn.t_ns, answer.cached_tokens, ()))
        return events

    def _preemptions(self) -> list[Event]:
        return [
            GaveWay(turn.t_ns, loss.by, loss.why, loss.kept_tokens)
            for turn, loss in self._life.losses
        ]

    def _first(self) -> list[Event]:
        times = self._life.token_times_ns
        return [FirstToken(times[0])] if times and not self._life.began_before else []

    def _over(self) -> list[Event]:
        life, finished = self._life, self._life.request.finished
        if finished is not None:
            return [Over(life.end_ns, str(finished.finish_reason), finished.stop_reason)]
        if life.ended is None:
            return []
        return [Over(life.end_ns, str(life.ended.reason), _stop_reason(life.ended))]

    # Where the time went

    def _phases(self, turning: list[Event]) -> tuple[PhaseSpan, ...]:
        """Every moment from the arrival to the end is in one phase."""
        life, opening = self._life, self._chronicle.opening
        spans = Phases(life.request.arrived_ns)
        if life.began_before and opening is not None:
            spans.phase = Phase.FORGOTTEN
            spans.turn_to(Phase.DECODE if life.ran_at_opening else Phase.PREEMPTED, opening.t_ns)
        moments = [(_time(event), place, event) for place, event in enumerate(turning)]
        tokens = [(t_ns, len(turning), None) for t_ns in life.token_times_ns]
        has_token = life.began_before
        for t_ns, _, event in sorted([*moments, *tokens], key=lambda moment: moment[:2]):
            match event:
                case Started():
                    spans.turn_to(Phase.PREFILL, t_ns)
                case GaveWay():
                    spans.turn_to(Phase.PREEMPTED, t_ns)
                case WentOn():
                    spans.turn_to(Phase.RECOMPUTE if has_token else Phase.PREFILL, t_ns)
                case None:
                    has_token = True
                    if spans.phase in (Phase.PREFILL, Phase.RECOMPUTE):
                        spans.turn_to(Phase.DECODE, t_ns)
                case _:
                    pass
        return spans.until(life.end_ns)

    def _with_waits(self, turning: list[Event], phases: tuple[PhaseSpan, ...]) -> list[Event]:
        """Who is admitted has waited since it arrived, or gave way."""
        told: list[Event] = []
        since_ns = self._life.request.arrived_ns
        for event in turning:
            match event:
                case GaveWay():
                    since_ns = event.t_ns
                case Started(t_ns, cached, account):
                    event = Started(t_ns, cached, account, self._waiting.between(since_ns, t_ns))
                case WentOn(t_ns, start):
                    event = WentOn(t_ns, start, self._waiting.between(since_ns, t_ns))
                case _:
                    pass
            told.append(event)
        if phases[-1].phase in (Phase.QUEUE, Phase.PREEMPTED):
            waits = self._waiting.between(phases[-1].begin_ns, self._life.end_ns)
            told.append(Waited(self._life.end_ns, waits))
        return told

    def _stalls(self, phases: tuple[PhaseSpan, ...]) -> list[Event]:
        stalls = Stalls(self._chronicle, self._life, self._waiting, phases)
        times = self._life.token_times_ns
        return [
            Stall(times[place + 1], times[place], place + 1, stalls.between(*times[place:][:2]))
            for place, gap_ns in enumerate(self._gaps)
            if gap_ns > self._stall_ns
        ]

    # Where the tokens went

    def _chunks(self) -> tuple[list[Event], TokenAccount]:
        """The steps that computed more than the last token, and what they computed."""
        life, generate = self._life, self._life.request.generate
        num_prompt = len(generate.prompt)
        cached = life.cached_tokens
        reach, computed, recomputed, found = cached, 0, 0, 0
        chunks: list[Event] = []
        for step, start, length in life.rows:
            if life.began_before and not computed + recomputed:
                reach = start
            new = max(start + length - max(start, reach), 0)
            found += max(start - reach, 0)
            computed, recomputed = computed + new, recomputed + length - new
            reach = max(reach, start + length)
            if step.posted_ns <= life.end_ns and (start < num_prompt or new < length):
                chunks.append(self._chunk(step, start, length, is_again=new < length))
        completion = life.completion_tokens
        beyond = max(reach - (num_prompt + completion - 1), 0) if reach else 0
        dropped = life.sampled_tokens - completion
        account = TokenAccount(
            num_prompt, cached, computed, recomputed, completion, dropped, beyond, found
        )
        return chunks, account

    def _chunk(self, step: Step, start: int, length: int, *, is_again: bool) -> Chunk:
        others = [serial for serial in step.serials.tolist() if serial != self._life.serial]
        mates = tuple(self._chronicle.name(serial) for serial in others)
        return Chunk(
            t_ns=step.posted_ns,
            step=step.number,
            start=start,
            length=length,
            step_tokens=step.plan.num_tokens,
            mates=mates,
            is_again=is_again,
            failed=step.error,
            began_ns=step.began_ns,
            done_ns=step.done_ns,
        )


def _time(event: Event) -> int:
    return event.t_ns


def _stop_reason(ended: Ended) -> int | str | None:
    return ended.stop_token_id if ended.error is None else ended.error
