"""Replay: the same cores take what was recorded, turn by turn, and must say the same, bit for bit.

What the cores say is what they ask each other, the plans, and what goes to the Detokenizer. The
recorded turns are a script. The replay gives the cores the turns that came from outside; those that
the cores begin themselves, a question and its answer, must be the next in the script.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias, get_args

from ...messages import (
    DecodeError,
    LoadWeights,
    Message,
    SampleRows,
    StepPlan,
    TokensReady,
    same,
)
from ..batching import Drafter, Grammars
from ..cores import Cores, CoreSetup, build_cores
from ..journal import ActorFailed, Envelope, Heard, Journal, Turn
from ..kvpool import PoolAnswer, PoolQuestion
from .difference import Difference
from .privacy import Tokens
from .reading import Recording
from .restoring import restore

CORES = ("scheduler", "kvpool")
_QUESTIONS, _ANSWERS = get_args(PoolQuestion), get_args(PoolAnswer)
_SAID = {
    "executor": (StepPlan, SampleRows, LoadWeights),
    "detokenizer": (TokensReady,),
}  # what others hear of the cores


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay."""

    turns: int  # that the cores took
    messages: int  # that they said as recorded
    steps: int
    failure: ActorFailed | None  # how the recorded engine ended, where it did not close
    difference: Difference | None


Watch: TypeAlias = Callable[[str, Envelope[Message], Cores], bool]
"""Sees every message with its receiver, before it is applied; False ends the replay there."""


def replay(
    recording: Recording,
    *,
    drafter: Drafter | None = None,
    grammars: Grammars | None = None,
    until: int | None = None,
    watch: Watch | None = None,
) -> Replayed:
    """Drive new cores through a recording, up to message `until`. Raises DecodeError where none can
    be built for it.

    What was recorded with a drafter or with grammars is replayed with the same ones.
    """
    if recording.opening is not None and recording.state is None:
        raise DecodeError(
            f"the recording begins after message {recording.opening.seq:,} of its engine, without "
            "the state of its cores; it explains and draws, and cannot be replayed"
        )
    if recording.header.tokens == Tokens.DROPPED:
        raise DecodeError(
            "the recording was written without token ids; it explains and draws, and cannot be "
            "replayed"
        )
    try:
        cores = _Replay(recording, drafter, grammars, until, watch)
    except (ValueError, OverflowError, MemoryError) as error:
        raise DecodeError(f"the recording's header describes no engine: {error}") from error
    return cores.run()


class _Stop(Exception):
    """Raised through the cores when there is nothing more to compare."""


class _Replay:
    def __init__(
        self,
        recording: Recording,
        drafter: Drafter | None,
        grammars: Grammars | None,
        until: int | None,
        watch: Watch | None,
    ) -> None:
        self._until = until
        self._watch = watch
        self._is_stopped = False
        self._end = recording.end
        self._turns = deque(turn for turn in recording.turns if turn.actor in CORES)
        since = 0 if recording.opening is None else recording.opening.seq
        self._said = {actor: _heard_by(actor, recording.turns, since) for actor in _SAID}
        whole = recording.turns if self._end is not None else recording.turns[:-1]
        self._is_cut = recording.is_cut
        self._last = {turn.actor: turn.turn.number for turn in whole}
        self._now: Turn[Message] | None = None  # the recorded turn that is being taken
        self._difference: Difference | None = None
        self._messages = self._steps = self._taken = 0
        self._journal = Journal(self._clock)
        self._journal.attach(self._hear)
        self._cores = build_cores(
            _setup_of(recording),
            self._journal,
            executor=lambda message: self._compare_said("executor", message),
            detokenizer=lambda message: self._compare_said("detokenizer", message),
            masks=lambda message: self._compare_said("executor", message),
            call_at=lambda _t_ns, _call: _NoTimer(),
            drafter=drafter,
            grammars=grammars,
        )
        if recording.opening is not None:
            restore(self._cores, recording.state)

    def run(self) -> Replayed:
        failed: ActorFailed | None = None
        try:
            while self._turns:
                self._take(self._turns.popleft())
        except _Stop:
            pass
        except Exception as error:  # whatever the cores raise: it may be what is looked for
            failed = ActorFailed.of("scheduler", error)
        if self._difference is None and not self._is_stopped:
            self._compare_ends(failed)
        failure = None if self._end is None else self._end.failure
        return Replayed(self._taken, self._messages, self._steps, failure, self._difference)

    # What comes from outside

    def _take(self, recorded: Heard) -> None:
        """A turn that the script gives to the cores."""
        self._now = turn = recorded.turn
        for envelope in turn.envelopes:
            self._tell(recorded.actor, envelope)
        self._taken += 1
        if recorded.actor == "kvpool":
            self._require_input(recorded, _QUESTIONS)
            self._journal.announce("kvpool", turn)
            self._cores.kvpool.react(turn)  # type: ignore[arg-type]  # as checked above
        else:
            self._require_input(recorded, _ANSWERS)
            self._journal.announce("scheduler", turn)
            self._cores.scheduler.react(turn)  # type: ignore[arg-type]  # as checked above

    def _tell(self, actor: str, envelope: Envelope[Message]) -> None:
        """Let who watches see a message, and end the replay where it is to end."""
        is_late = self._until is not None and envelope.seq > self._until
        if is_late or (self._watch and not self._watch(actor, envelope, self._cores)):
            self._is_stopped = True
            raise _Stop

    def _require_input(self, recorded: Heard, own: tuple[type, ...]) -> None:
        """What the cores say themselves is not given to them: they should have said it."""
        message = recorded.turn.envelopes[0].message
        if isinstance(message, own):
            self._differ(recorded.actor, message, None)

    def _clock(self) -> int:
        """The cores' time is that of the recorded turns."""
        return 0 if self._now is None else self._now.t_ns

    # What the cores say

    def _hear(self, actor: str, turn: Turn[Message]) -> None:
        """A sink: the cores began a turn themselves, for a question or an answer."""
        if turn is self._now:
            return
        self._take_what_arrived(actor)
        for envelope in turn.envelopes:
            self._compare_turn(actor, envelope.message)

    def _take_what_arrived(self, actor: str) -> None:
        """A question first drains the pool's mailbox (rule 1)."""
        while self._turns and self._turns[0].actor == actor == "kvpool":
            if isinstance(self._turns[0].turn.envelopes[0].message, _QUESTIONS):
                return
            now = self._now
            self._take(self._turns.popleft())
            self._now = now

    def _compare_turn(self, actor: str, replayed: Message) -> None:
        if not self._turns and self._is_cut:
            raise _Stop
        if not self._turns or self._turns[0].actor != actor:
            self._differ(actor, None, replayed)
        recorded = self._turns.popleft().turn.envelopes[0]
        self._tell(actor, recorded)
        self._compare(actor, recorded.message, replayed)

    def _compare_said(self, actor: str, replayed: Message) -> None:
        said = self._said[actor]
        if said:
            self._steps += isinstance(replayed, StepPlan)
            recorded = said.popleft()
            self._tell(actor, recorded)
            self._compare(actor, recorded.message, replayed)
            if actor == "executor" and not said and self._is_end_of(actor):
                raise _Stop  # the device failed in the middle of the turn
        elif self._was_taken(actor):
            self._differ(actor, None, replayed)

    def _is_end_of(self, actor: str) -> bool:
        """Whether it was this actor that ended the recorded engine."""
        failure = None if self._end is None else self._end.failure
        return failure is not None and failure.actor == actor

    def _was_taken(self, actor: str) -> bool:
        """Whether the actor took all that is said now, if it was said; a cut may have lost it."""
        if actor == "executor":  # it takes a plan at once
            return bool(self._turns) or not self._is_cut
        return self._now is not None and self._now.number < self._last.get(actor, 0)

    def _compare(self, actor: str, recorded: Message, replayed: Message) -> None:
        if not same(recorded, replayed):
            self._differ(actor, recorded, replayed)
        self._messages += 1

    # The end

    def _compare_ends(self, failed: ActorFailed | None) -> None:
        """All that was recorded is said, and the cores end as they did."""
        recorded = None if self._end is None else self._end.failure
        of_cores = recorded if recorded is not None and recorded.actor in CORES else None
        if of_cores is not None:  # the pool may have taken a turn after the Scheduler's last
            self._turns = deque(turn for turn in self._turns if turn.actor == "scheduler")
        if _failure(failed) != _failure(of_cores) and (self._turns or not self._is_cut):
            self._note("scheduler", _failure(of_cores), _failure(failed))
        elif self._turns:
            self._note(self._turns[0].actor, self._turns[0].turn.envelopes[0].message, None)
        else:
            for actor, said in self._said.items():
                if said and self._difference is None:
                    self._note(actor, said[0].message, None)

    def _differ(self, actor: str, recorded: Message | None, replayed: Message | None) -> None:
        self._note(actor, recorded, replayed)
        raise _Stop

    def _note(
        self, actor: str, recorded: Message | str | None, replayed: Message | str | None
    ) -> None:
        turn = 0 if self._now is None else self._now.number
        self._difference = Difference(turn, actor, recorded, replayed)


class _NoTimer:
    """Timers are not set: what they woke is in the recording."""

    def cancel(self) -> None:
        """There is nothing to cancel."""


def _failure(failure: ActorFailed | None) -> str | None:
    return None if failure is None else str(failure)


def _setup_of(recording: Recording) -> CoreSetup:
    """The invariants look at what led to a state, which is not part of it."""
    setup = recording.header.setup
    return setup if recording.opening is None else replace(setup, is_checked=False)


def _heard_by(actor: str, turns: Iterable[Heard], since: int) -> deque[Envelope[Message]]:
    """What an actor heard from the cores after that message, in the order in which it was said."""
    kinds = _SAID[actor]
    envelopes = [e for turn in turns if turn.actor == actor for e in turn.turn.envelopes]
    return deque(e for e in envelopes if isinstance(e.message, kinds) and e.seq > since)
