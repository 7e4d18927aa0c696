"""The Batcher: who runs in the next step. Pure: no awaits, no clock, no tensors, no logging.

Prefill, chunked prefill and decode are one rule: a sequence wants to move `scheduled` up to what
is confirmed or being sampled, within the token budget, the context and the blocks it gets. Rule
numbers are those of docs/rules.md.
"""

from ...messages import (
    Ended,
    FinishReason,
    Generate,
    GrammarReady,
    Longs,
    SampleRows,
    StepDone,
    StepFailed,
    StepPlan,
    TokensReady,
    frozen_longs,
    seal,
)
from .block_client import BlockClient, PoolPort
from .failures import Failures
from .grammar import Grammars
from .ledger import Ledger
from .limits import BatchLimits
from .logprobs import that_count
from .parts import Parts
from .planner import Planner
from .prefix_age import PrefixAge
from .publishing import Publisher
from .report import Report
from .roster import Roster
from .sequence import Sequence
from .speculation import Drafter, Speculation, confirm_drafted
from .steps import StepsInFlight
from .structured import StructuredRows
from .timers import Ageing, Deadlines
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
        self._deadlines = Deadlines(self._roster)
        self._ageing = Ageing(limits.ageing_ns, self._roster)
        self.is_paused = False
        victims = Victims(self._ledger, self._roster)
        has_host_memory = limits.num_host_blocks > 0
        self._blocks = BlockClient(
            pool, self.steps, self._ledger, victims, has_host_memory=has_host_memory
        )
        ttl_ns = limits.prefix_ttl_ns
        self._prefix_age = None if ttl_ns is None else PrefixAge(ttl_ns, self._blocks)
        self.weights = WeightReset(self._ledger, self._roster, self._blocks, self.steps)
        publisher = Publisher(self._ledger, limits.block_size, self._blocks)
        self._publisher = publisher if limits.prefix_caching else None
        self._drafter = drafter
        self._structured = StructuredRows(
            self._ledger, self.steps, grammars, self._report, may_hold=limits.holds_sampling
        )
        parts = Parts(
            limits=limits,
            ledger=self._ledger,
            roster=self._roster,
            blocks=self._blocks,
            publisher=self._publisher,
            victims=victims,
            structured=self._structured,
            steps=self.steps,
            report=self._report,
        )
        speculation = None if drafter is None else Speculation(drafter, parts)
        self._planner = Planner(parts, speculation)
        self._failures = Failures(parts, self._end)

    # Requests

    def add(self, request: Generate, now_ns: int) -> None:
        """A new request waits."""
        is_drafted = self._drafter is not None and request.grammar is None
        most_drafts = self._drafter.most(request) if self._drafter and is_drafted else 0
        self._roster.add(Sequence(request, request.prompt, most_drafts))
        self._deadlines.add(request)
        self._ageing.add(request.serial, now_ns)

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
        for serial in self._deadlines.take_expired(now_ns):
            self._end(serial, FinishReason.TIMEOUT)

    @property
    def next_deadline_ns(self) -> int | None:
        """When a turn is due though nothing arrives; 0 is at once."""
        if self._structured.is_behind:
            return 0
        next_ns = self._deadlines.next_ns
        if next_ns is not None:
            return next_ns
        return self._prefix_age.due_ns if self._prefix_age and self.is_idle else None

    # Steps

    def pass_time(self, now_ns: int) -> None:
        """A turn begins; cached prefixes may have become too old to be found in it, and grammars
        go on with what the last one left them."""
        if self._prefix_age is not None:
            self._prefix_age.pass_time(now_ns, is_idle=self.is_idle)
        self._structured.begin_turn()
        self._advance_grammars()

    def plan(self, now_ns: int) -> StepPlan | None:
        """The next step, or None when nothing can run or enough steps are in flight.

        A plan that is returned must be posted: it is certain from here on (rule 3).
        """
        self._blocks.tell()
        if self.steps.is_full or self.is_paused or self.weights.is_awaited:
            return None
        self._ageing.pass_time(now_ns)
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
            self._failures.fail_rows(plan, result.failed)
        if plan.drafts is None:
            is_current = changes == ledger.changes
            slots, token_ids, lengths = ledger.confirm(
                plan, result.token_ids, is_current=is_current
            )
        else:
            slots, token_ids, lengths = confirm_drafted(ledger, plan, result)
        serials = ledger.serial[slots]
        self._report.add_tokens(serials, token_ids)
        if result.logprobs is not None:
            told = that_count(ledger, plan, result.logprobs, slots, lengths)
            self._report.add_logprobs(told)
        ends = ledger.ends(slots, token_ids, lengths)
        if ledger.structured:
            self._put_off_grammars(slots, dict(ends))
        for row, is_stop in ends:
            serial = int(serials[row])
            if is_stop:
                self._end(serial, FinishReason.STOP, stop_token_id=int(token_ids[row]))
            else:
                self._end(serial, FinishReason.LENGTH)
        self._advance_grammars()

    def _put_off_grammars(self, slots: Longs, ends: dict[int, bool]) -> None:
        """A stop id ends a sequence whatever its grammar says; that of one that ends by length
        may say at once that it was over."""
        for row, slot in enumerate(slots.tolist()):
            if slot not in self._ledger.structured or ends.get(row):
                continue
            sequence = self._roster.at(slot)
            if row in ends:
                self._go_on(sequence, self._structured.advance(sequence))
            else:
                self._structured.put_off(sequence)

    def _advance_grammars(self) -> None:
        """Let grammars see what was confirmed, as far as the turn has room for it."""
        for sequence in self._structured.take_behind():
            if self._roster.get(sequence.request.serial) is sequence:
                self._go_on(sequence, self._structured.advance(sequence))

    def _go_on(self, sequence: Sequence, error: str | None) -> None:
        """Unless its grammar is in the way."""
        if error is not None:
            self._end(sequence.request.serial, FinishReason.ERROR, error=error)
        elif sequence.grammar is not None and sequence.grammar.is_over:
            is_steered = sequence.grammar.is_steered
            self._end(sequence.request.serial, FinishReason.STOP, is_steered=is_steered)

    def take_masks(self) -> list[SampleRows]:
        """The masks that held rows wait for, as far as they are known; to be posted before the
        next plan, also while paused."""
        return self._structured.take_due()

    def fail(self, result: StepFailed) -> bool:
        """A step gave nothing (rule 18). False says that it failed only because of an earlier
        one, whose failure dealt with its sequences."""
        self._blocks.unpublish()
        plan, _ = self.steps.take_oldest(result.step)
        return self._failures.fail_step(plan, result.error)

    def take_report(self) -> TokensReady | None:
        """What happened since the last call, for the Detokenizer."""
        return self._report.take()

    def _end(
        self,
        serial: int,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: str | None = None,
        is_steered: bool = False,
    ) -> None:
        sequence = self._roster.get(serial)
        if sequence is None:
            return
        self._report.add(Ended(serial, reason, stop_token_id, error, is_steered))
        if sequence.slot is not None:
            if self._publisher is not None and reason is not FinishReason.ERROR:
                self._publisher.publish_last(sequence.slot, self.steps.posted)
            self._blocks.release(sequence.slot)
        self._roster.remove(sequence)

    def reopen_grammars(self) -> None:
        """Its state comes from another process, and without grammars. Raises ValueError where
        one does not go on as it did."""
        for sequence in self._roster:
            tokens = self._ledger.confirmed_tokens(sequence)
            self._structured.reopen(sequence, tokens[len(sequence.request.prompt) :])

    # Facts

    @property
    def ledger(self) -> Ledger:
        """To look into, not to change."""
        return self._ledger

    @property
    def roster(self) -> Roster:
        """To look into, not to change."""
        return self._roster

    @property
    def is_empty(self) -> bool:
        return len(self._roster) == 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is live and no step is in flight."""
        return self.is_empty and not len(self.steps)

    @property
    def owners(self) -> tuple[Longs, Longs]:
        """By slot the serial of who had it last, and the serials of those that run."""
        serials = frozen_longs(self._ledger.serial)
        return serials, seal(serials[self._roster.running.slots])

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
