"""The Batcher: who runs in the next step. Pure: no awaits, no clock, no tensors, no logging.

Prefill, chunked prefill and decode are one rule: a sequence wants to move `scheduled` up to what
is confirmed or being sampled, within the token budget, the context and the blocks it gets. Rule
numbers are those of docs/rules.md.
"""

import heapq

from ...messages import (
    Ended,
    FinishReason,
    Generate,
    GrammarReady,
    Ints,
    Longs,
    Preempted,
    RowFailed,
    SampleRows,
    StepDone,
    StepFailed,
    StepPlan,
    TokensReady,
    frozen_longs,
)
from .block_client import BlockClient, PoolPort
from .grammar import Grammars
from .ledger import Ledger
from .limits import MAX_FAILED_STEPS, BatchLimits
from .planner import Planner
from .prefix_age import PrefixAge
from .publishing import Publisher
from .report import Report
from .roster import Roster
from .sequence import Sequence
from .speculation import Drafter, Speculation, confirm_drafted
from .steps import StepsInFlight
from .structured import StructuredRows
from .victims import Victims
from .weights import WeightReset


class Batcher:
    """Sequences come (`add`), go (`abort`, `stop_matched`, `expire`) and advance (`plan`,
    `complete`, `fail`); `take_report` says what happened."""

    def __init__(
        self,
        limits: BatchLimits,
        pool: PoolPort,
        *,
        drafter: Drafter | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.steps = StepsInFlight(limits.steps_in_flight)
        self._ledger = Ledger(limits.num_slots, limits.max_model_len, limits.block_size)
        self._roster = Roster(self._ledger)
        self._report = Report()
        self._limits = limits
        self._deadlines: list[tuple[int, int]] = []  # a heap of (time, serial), lazily purged
        self._ages: list[tuple[int, int]] = []  # a heap of (when to gain a class, serial)
        self.is_paused = False
        self._doomed = 0  # steps up to this one were in flight when one of them failed
        victims = Victims(self._ledger, self._roster)
        self._blocks = BlockClient(
            pool,
            self.steps,
            self._ledger,
            victims,
            has_host_memory=limits.num_host_blocks > 0,
        )
        ttl_ns = limits.prefix_ttl_ns
        self._prefix_age = None if ttl_ns is None else PrefixAge(ttl_ns, self._blocks)
        self.weights = WeightReset(self._ledger, self._roster, self._blocks, self.steps)
        publisher = Publisher(self._ledger, limits.block_size, self._blocks)
        self._publisher = publisher if limits.prefix_caching else None
        self._drafter = drafter
        self._structured = StructuredRows(
            self._ledger, self.steps, grammars, may_hold=limits.holds_sampling
        )
        self._planner = Planner(
            limits,
            self._ledger,
            self._roster,
            self._blocks,
            self._publisher,
            victims,
            Speculation(drafter, limits, self._ledger, self._roster, self._blocks, self._publisher)
            if drafter is not None
            else None,
            self._structured,
            steps=self.steps,
            report=self._report,
        )

    # Requests

    def add(self, request: Generate, now_ns: int) -> None:
        """A new request waits."""
        if self._limits.ageing_ns is not None:
            heapq.heappush(self._ages, (now_ns + self._limits.ageing_ns, request.serial))
        is_drafted = self._drafter is not None and request.grammar is None
        most_drafts = self._drafter.most(request) if self._drafter and is_drafted else 0
        self._roster.add(Sequence(request, request.prompt, most_drafts))
        for time_ns in (request.deadline_ns, request.queue_deadline_ns):
            if time_ns is not None:
                heapq.heappush(self._deadlines, (time_ns, request.serial))

    def grammar_ready(self, ready: GrammarReady) -> None:
        """A waiting request's grammar was compiled; an unknown or ended serial is a no-op."""
        sequence = self._roster.get(ready.serial)
        if sequence is not None and not sequence.is_ready:
            self._go_on(sequence, ready.error or self._structured.open(sequence))

    def abort(self, serial: int) -> None:
        """Somebody gave up; an unknown or ended serial is a no-op (rule 8)."""
        self._end(serial, FinishReason.ABORT)

    def stop_matched(self, serial: int) -> None:
        """The Detokenizer closed the stream at a stop string: let go of the rest (rule 26)."""
        self._end(serial, FinishReason.STOP)

    def expire(self, now_ns: int) -> None:
        """End what has passed its deadline, or waited longer than its queue timeout (rule 25)."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, serial = heapq.heappop(self._deadlines)
            sequence = self._roster.get(serial)
            if sequence is not None and sequence.is_expired(now_ns):
                self._end(serial, FinishReason.TIMEOUT)

    @property
    def next_deadline_ns(self) -> int | None:
        """When a turn is due though nothing arrives."""
        while self._deadlines and self._deadlines[0][1] not in self._roster:
            heapq.heappop(self._deadlines)
        if self._deadlines:
            return self._deadlines[0][0]
        return self._prefix_age.due_ns if self._prefix_age and self.is_idle else None

    # Steps

    def pass_time(self, now_ns: int) -> None:
        """A turn begins; cached prefixes may have become too old to be found in it."""
        if self._prefix_age is not None:
            self._prefix_age.pass_time(now_ns, is_idle=self.is_idle)

    def plan(self, now_ns: int) -> StepPlan | None:
        """The next step, or None when nothing can run or enough steps are in flight.

        A plan that is returned must be posted: it is certain from here on (rule 3).
        """
        self._blocks.tell()
        if self.steps.is_full or self.is_paused or self.weights.is_awaited:
            return None
        self._age(now_ns)
        plan = self._planner.plan(now_ns)
        if plan is not None:
            self.steps.post(plan, self._ledger.changes)
        return plan

    def complete(self, result: StepDone) -> None:
        """Apply the result of the oldest step in flight."""
        ledger = self._ledger
        if result.failed:
            self._blocks.unpublish()  # before the step counts as done
        plan, changes = self.steps.take_oldest(result.step)
        if result.failed:
            self._fail_rows(plan, result.failed)
        if plan.drafts is None:
            is_current = changes == ledger.changes
            slots, token_ids, lengths = ledger.confirm(
                plan, result.token_ids, is_current=is_current
            )
        else:
            slots, token_ids, lengths = confirm_drafted(ledger, plan, result)
        serials = ledger.serial[slots]
        self._report.add_tokens(serials, token_ids)
        ends = ledger.ends(slots, token_ids, lengths)
        if ledger.structured:
            self._advance_grammars(slots, token_ids, {row for row, is_stop in ends if is_stop})
        for row, is_stop in ends:
            serial = int(serials[row])
            if is_stop:
                self._end(serial, FinishReason.STOP, stop_token_id=int(token_ids[row]))
            else:
                self._end(serial, FinishReason.LENGTH)

    def _advance_grammars(self, slots: Longs, token_ids: Ints, stops: set[int]) -> None:
        """A stop id ends a sequence whatever its grammar says; that of the others may end it."""
        for row, (slot, token_id) in enumerate(
            zip(slots.tolist(), token_ids.tolist(), strict=True)
        ):
            if slot in self._ledger.structured and row not in stops:
                sequence = self._roster.at(slot)
                self._go_on(sequence, self._structured.advance(sequence, token_id))

    def _go_on(self, sequence: Sequence, error: str | None) -> None:
        """Unless its grammar is in the way."""
        if error is not None:
            self._end(sequence.request.serial, FinishReason.ERROR, error=error)
        elif sequence.grammar is not None and sequence.grammar.is_over:
            self._end(sequence.request.serial, FinishReason.STOP)

    def take_masks(self) -> list[SampleRows]:
        """The masks that held rows wait for, as far as they are known; to be posted before the
        next plan, also while paused."""
        return self._structured.take_due()

    def fail(self, result: StepFailed) -> bool:
        """A step gave nothing: all sequences in flight start again, or fail when it happens too
        often; who waits already loses what it holds. What steps in flight after it still bring
        does not count (rule 18).

        False says that it failed only because of an earlier one.
        """
        self._blocks.unpublish()
        plan, _ = self.steps.take_oldest(result.step)
        if plan.step <= self._doomed:
            return False  # its sequences were dealt with when the first one failed
        self._doomed = self.steps.posted
        for slot in self._touched_since(self._ledger.last_step, plan.step):
            sequence = self._roster.at(slot)
            if self._roster.is_running(sequence):
                self._retry(sequence, result.error)
            else:
                self._drop(sequence)
        return True

    def take_report(self) -> TokensReady | None:
        """What happened since the last call, for the Detokenizer."""
        return self._report.take()

    def _fail_rows(self, plan: StepPlan, failures: tuple[RowFailed, ...]) -> None:
        """Those requests fail alone. What is not known to be written is not found any more, and
        whoever started upon such blocks starts again (rule 19)."""
        for failed in failures:
            slot = int(plan.slots[failed.row])
            if plan.epochs[failed.row] >= self._ledger.valid_from[slot]:
                serial = self._roster.at(slot).request.serial
                self._end(serial, FinishReason.ERROR, error=failed.error)
        for slot in self._touched_since(self._ledger.hit_step, plan.step):
            sequence = self._roster.at(slot)
            if self._roster.is_running(sequence):
                self._start_again(sequence)
            else:
                self._drop(sequence)

    def _touched_since(self, steps: Ints, step: int) -> list[int]:
        """The slots of live sequences whose entry in `steps` is not before `step`."""
        slots: list[int] = (steps >= step).nonzero()[0].tolist()
        return [slot for slot in slots if self._ledger.sequences[slot] is not None]

    def _retry(self, sequence: Sequence, error: str) -> None:
        sequence.failed_steps += 1
        if sequence.failed_steps > MAX_FAILED_STEPS:
            self._end(sequence.request.serial, FinishReason.ERROR, error=error)
            return
        self._start_again(sequence)

    def _start_again(self, sequence: Sequence) -> None:
        """It waits in its place and is computed afresh."""
        self._drop(sequence)
        self._roster.preempt(sequence)
        self._report.add(Preempted(sequence.request.serial))

    def _drop(self, sequence: Sequence) -> None:
        """Results in flight do not count, and nothing of its KV is kept."""
        assert sequence.slot is not None
        self._blocks.release(sequence.slot)
        self._ledger.preempt(sequence.slot, kept_blocks=0)
        self._ledger.void(sequence.slot)

    def _age(self, now_ns: int) -> None:
        """Waiting long enough raises a sequence by one class (rule 13)."""
        while self._ages and self._ages[0][0] <= now_ns:
            _, serial = heapq.heappop(self._ages)
            sequence = self._roster.get(serial)
            if sequence is None:
                continue
            if not self._roster.is_running(sequence):
                self._roster.raise_class(sequence)
            assert self._limits.ageing_ns is not None
            heapq.heappush(self._ages, (now_ns + self._limits.ageing_ns, serial))

    def _end(
        self,
        serial: int,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> None:
        sequence = self._roster.get(serial)
        if sequence is None:
            return
        self._report.add(Ended(serial, reason, stop_token_id, error))
        if sequence.slot is not None:
            if self._publisher is not None and reason is not FinishReason.ERROR:
                slots = frozen_longs((sequence.slot,))
                self._publisher.publish(slots, self._ledger.reach(slots), self.steps.posted)
            self._blocks.release(sequence.slot)
        self._roster.remove(sequence)

    # Facts

    @property
    def is_empty(self) -> bool:
        return len(self._roster) == 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is live and no step is in flight."""
        return self.is_empty and not len(self.steps)

    @property
    def preemptions(self) -> int:
        """How often a sequence gave its blocks away, since the start."""
        return self._roster.preemptions

    @property
    def swaps(self) -> int:
        """How often a sequence came back from host memory."""
        return self._roster.swaps

    @property
    def is_compiling(self) -> bool:
        """Whether a request waits for its grammar."""
        return not all(sequence.is_ready for sequence in self._roster.waiting)

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        return len(self._roster.waiting)

    def check(self) -> None:
        """Assert the ledger's invariants (rules 4, 6, 7, 16, 17 and 23)."""
        self._ledger.check(self.steps.done, self.steps, self._roster.running.slots)
        findable = self._ledger.published * self._limits.block_size
        assert (findable <= self._ledger.confirmed).all(), "a block is findable before its tokens"
        self._structured.check()
