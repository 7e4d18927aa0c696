"""The Scheduler actor: the Batcher behind a mailbox, and the timer for deadlines."""

from collections.abc import Callable
from typing import Protocol, TypeAlias, assert_never

from ..messages import (
    Abort,
    DeadlineReached,
    Generate,
    GrammarReady,
    LoadWeights,
    Pause,
    ReloadWeights,
    Resume,
    SampleRows,
    StepDone,
    StepFailed,
    StepPlan,
    StopMatched,
    TokensReady,
    WeightsLoaded,
)
from .actor import Actor, Address, Mailbox
from .batching import Batcher
from .journal import Turn

SchedulerMessage: TypeAlias = (
    Generate
    | GrammarReady
    | Abort
    | StopMatched
    | DeadlineReached
    | Pause
    | Resume
    | ReloadWeights
    | WeightsLoaded
    | StepDone
    | StepFailed
)

MAX_FAILURES_IN_A_ROW = 8  # steps; a device that fails this often is broken


class Timer(Protocol):
    """What `call_at` gives back."""

    def cancel(self) -> None: ...


CallAt: TypeAlias = Callable[
    [int, Callable[[], None]], Timer
]  # (nanoseconds on the engine's clock)


class Scheduler(Actor[SchedulerMessage]):
    """One turn: apply what arrived, plan and post steps, then tell the Detokenizer."""

    def __init__(
        self,
        mailbox: Mailbox[SchedulerMessage],
        batcher: Batcher,
        *,
        executor: Address[StepPlan],
        detokenizer: Address[TokensReady],
        call_at: CallAt,
        weights: Address[LoadWeights] | None = None,
        masks: Address[SampleRows] | None = None,
        after_turn: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(mailbox)
        self._batcher = batcher
        self._executor = executor
        self._detokenizer = detokenizer
        self._masks = masks  # None for devices without held rows
        self._call_at = call_at
        self._weights = weights  # None: the device has none, and nobody asks for others
        self._after_turn = after_turn  # invariants to check
        self._timer: Timer | None = None
        self._timer_ns: int | None = None
        self.failures_in_a_row = 0
        self.progressed_ns = 0  # when a step was last posted or done, or a request came

    def react(self, turn: Turn[SchedulerMessage]) -> None:
        self._batcher.pass_time(turn.t_ns)
        for envelope in turn.envelopes:
            self._apply(envelope.message, turn.t_ns)
        self._batcher.expire(turn.t_ns)
        for masks in self._batcher.take_masks():
            assert self._masks is not None, "a row is held, and nobody takes its mask"
            self._masks(masks)
        if self._batcher.weights.is_awaited:
            self._load_weights()
        while (plan := self._batcher.plan(turn.t_ns)) is not None:
            self._executor(plan)
            self.progressed_ns = turn.t_ns
        report = self._batcher.take_report()
        if report is not None:
            self._detokenizer(report)
        self._set_timer()
        if self._after_turn is not None:
            self._after_turn()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _apply(self, message: SchedulerMessage, now_ns: int) -> None:
        match message:
            case StepDone():
                self.failures_in_a_row = 0
                self.progressed_ns = now_ns
                self._batcher.complete(message)
            case Generate():
                if self._batcher.is_empty:
                    self.progressed_ns = now_ns
                self._batcher.add(message, now_ns)
            case Abort():
                self._batcher.abort(message.serial)
            case StopMatched():
                self._batcher.stop_matched(message.serial)
            case StepFailed():
                if self._batcher.fail(message):
                    self._count_failure(message)
            case GrammarReady():
                self._batcher.grammar_ready(message)
            case DeadlineReached():
                self._timer_ns = None
            case ReloadWeights():
                self._batcher.weights.want(message.source)
            case WeightsLoaded():
                self.progressed_ns = now_ns
                self._batcher.weights.loaded()
            case Pause():
                self._batcher.is_paused = True
            case Resume():
                self._batcher.is_paused = False
            case _:
                assert_never(message)

    def _load_weights(self) -> None:
        source = self._batcher.weights.begin_loading()
        if source is not None:
            assert self._weights is not None
            self._weights(LoadWeights(source))

    def _count_failure(self, failed: StepFailed) -> None:
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise RuntimeError(
                f"the device failed {self.failures_in_a_row} steps in a row: {failed.error}"
            )

    def _set_timer(self) -> None:
        """Wake up at the earliest deadline; a deadline is only ever acted on in a turn."""
        due_ns = self._batcher.next_deadline_ns
        if due_ns == self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ns = due_ns
        if due_ns is not None:
            self._timer = self._call_at(due_ns, lambda: self._mailbox.post(DeadlineReached()))
