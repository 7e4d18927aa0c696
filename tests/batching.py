"""Builders for tests of the pure cores, and a world that runs them without asyncio."""

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from stepahead.actors.batching import Batcher, BatchLimits, Drafter
from stepahead.actors.cores import build_pool
from stepahead.gpu.device import DeviceFacts
from stepahead.gpu.host import HostMemory
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.kvpool import prefix_root
from stepahead.messages import (
    Admitted,
    BlocksReserved,
    Ended,
    FinishReason,
    Generate,
    GrammarReady,
    PinPrefix,
    PrefixEnd,
    ReserveBlocks,
    RowFailed,
    SamplingParams,
    StepDone,
    StepFailed,
    StepPlan,
    TokensReady,
    WeightsLoaded,
    frozen_ints,
)

from .grammars import ScriptedGrammars, structured_answer
from .told import ToldLogprobs

BLOCK = 4
STEP_ERROR = "out of memory"
ROW_ERROR = "the logits are not numbers"


def make_limits(
    *,
    max_model_len: int = 256,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    long_prefill_token_threshold: int | None = None,
    steps_in_flight: int = 2,
    prefix_caching: bool = True,
    holds_sampling: bool = True,
    num_blocks: int = 64,
    ageing_ns: int | None = None,
    prefix_ttl_ns: int | None = None,
    num_host_blocks: int = 0,
    doubling_context: int | None = None,
) -> BatchLimits:
    return BatchLimits(
        block_size=BLOCK,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_prefill_token_threshold=long_prefill_token_threshold,
        steps_in_flight=steps_in_flight,
        prefix_caching=prefix_caching,
        holds_sampling=holds_sampling,
        ageing_ns=ageing_ns,
        prefix_ttl_ns=prefix_ttl_ns,
        num_host_blocks=num_host_blocks,
        block_copy_s=1.0,
        token_s=1.0,  # to compute a block takes twice as long as to move it there and back
        doubling_context=doubling_context,
    )


def make_facts(
    num_blocks: int = 64, max_model_len: int = 256, *, num_host_blocks: int = 0
) -> DeviceFacts:
    return DeviceFacts(
        model="oracle",
        device="simulated",
        dtype="none",
        vocab_size=512,
        max_model_len=max_model_len,
        block_size=BLOCK,
        num_blocks=num_blocks,
        eos_token_ids=frozenset({256}),
        host=HostMemory(num_blocks=num_host_blocks),
    )


def make_request(
    serial: int,
    prompt: Iterable[int] = (5, 6, 7),
    *,
    max_tokens: int = 4,
    min_tokens: int = 0,
    stop_token_ids: tuple[int, ...] = (256,),
    priority: int = 0,
    deadline_ns: int | None = None,
    queue_deadline_ns: int | None = None,
    cache_salt: bytes = b"",
    grammar: str | None = None,
    asks: Mapping[str, int] = MappingProxyType({}),  # sampling parameters about logprobs
) -> Generate:
    token_ids = frozen_ints(prompt)
    return Generate(
        serial=serial,
        request_id=f"r{serial}",
        prompt=token_ids,
        params=SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, **asks),  # type: ignore[arg-type]
        seed=serial,
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        priority=priority,
        deadline_ns=deadline_ns,
        queue_deadline_ns=queue_deadline_ns,
        cache_salt=cache_salt,
        grammar=grammar,
    )


def with_failed_row(plan: StepPlan, result: StepDone, row: int) -> StepDone:
    """The same result, but for a row that came back useless."""
    counts = np.ones(np.count_nonzero(plan.samples), dtype=np.int32)
    if result.counts is not None:
        counts = result.counts.copy()
    token_ids = result.token_ids.tolist()
    if plan.samples[row]:
        place = int(np.count_nonzero(plan.samples[:row]))
        start = int(counts[:place].sum())
        token_ids[start : start + int(counts[place])] = [-1]
        counts[place] = 1
    failed = RowFailed(row, ROW_ERROR)
    return StepDone(
        plan.step,
        frozen_ints(token_ids),
        (failed,),
        None if result.counts is None else frozen_ints(counts),
        result.logprobs,
    )


@dataclass
class World:
    """A Batcher and its pool against the oracle, one call at a time; every call is checked."""

    limits: BatchLimits = field(default_factory=make_limits)
    num_blocks: int = 64
    watermark: int = 0
    oracle: Oracle = field(default_factory=Oracle)
    drafter: Drafter | None = None
    said: dict[int, list[int]] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    reports: list[TokensReady] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limits = replace(self.limits, num_blocks=self.num_blocks)
        self.pool = build_pool(self.limits, self.watermark)
        self.batcher = Batcher(
            self.limits, self.pool, drafter=self.drafter, grammars=ScriptedGrammars()
        )
        facts = make_facts(
            self.num_blocks,
            self.limits.max_model_len,
            num_host_blocks=self.limits.num_host_blocks,
        )
        self.device = SimulatedDevice(
            facts, self.limits.num_slots, lambda _, call: call(), oracle=self.oracle
        )
        self.plans: deque[StepPlan] = deque()
        self._mentioned: deque[set[int]] = deque()  # blocks that each step in flight may touch
        self._mentioned_hosts: deque[set[int]] = deque()  # the same of host blocks
        self.moved_blocks = 0  # there and back
        self._doomed: set[int] = set()  # steps that come back failed
        self.drafted = 0  # drafts that completed steps carried
        self.accepted = 0  # those that turned out right
        self.held = 0  # rows that were planned before their mask was known
        self.has_failed = False  # then tokens may be lost on purpose
        self.oracles: dict[int, list[tuple[int, Oracle]]] = {}  # from which output token on
        self._loaded: list[WeightsLoaded] = []  # what the device has not told yet
        self._riders: deque[list[int]] = deque()  # serials that each step in flight samples for
        self.requests: dict[int, Generate] = {}
        self.told = ToldLogprobs(self.device.facts.vocab_size)
        self._watch_reservations()
        self.now = 0

    def add(self, request: Generate) -> Generate:
        self.batcher.add(request, self.now)
        self.said.setdefault(request.serial, [])
        self.requests[request.serial] = request
        self.oracles[request.serial] = [(0, self.device.oracle)]
        self._look()
        return request

    def request(self, serial: int, prompt: Sequence[int], **options: object) -> Generate:
        return self.add(make_request(serial, prompt, **options))  # type: ignore[arg-type]  # passed on

    def compile(self, serial: int, error: str | None = None) -> None:
        """A grammar is ready, or wrong."""
        self.batcher.grammar_ready(GrammarReady(serial, error))
        self._look()

    def pass_time(self) -> None:
        """A turn begins a moment later: what has become too old ends, or is not found any more."""
        self.now += 1
        self.batcher.pass_time(self.now)
        self.batcher.expire(self.now)
        if self.limits.prefix_ttl_ns is not None:
            oldest_ns = self.pool._free._cached.oldest_ns
            is_old = oldest_ns is not None and oldest_ns <= self.now - self.limits.prefix_ttl_ns
            assert not is_old, "old content is still found"
        self._look()

    def pin(self, number: int, prompt: Sequence[int], cache_salt: bytes) -> None:
        self.pool.pin(PinPrefix(number, prefix_root(cache_salt), frozen_ints(prompt)))
        self._look()

    def plan(self) -> StepPlan | None:
        plan = self.batcher.plan(self.now)
        if plan is not None:
            self._check_plan(plan)
            held = 0 if plan.masks is None else len(plan.masks.held)
            assert not held or self.limits.holds_sampling, "the device cannot hold rows"
            self.held += held
            self.plans.append(plan)
            slots = plan.slots[plan.samples].tolist()
            self._riders.append([int(self.batcher._ledger.serial[slot]) for slot in slots])
            self._mentioned.append({b for s in plan.slots.tolist() for b in self.pool.table(s)})
            self._note_copies(plan)
        self._look()
        return plan

    def _note_copies(self, plan: StepPlan) -> None:
        """Copies mention blocks too, on both sides."""
        hosts: set[int] = set()
        if plan.copies is not None:
            copies = plan.copies
            assert len(copies) > 0, "copies of nothing"
            self.moved_blocks += len(copies)
            self._mentioned[-1].update(copies.out_blocks.tolist(), copies.in_blocks.tolist())
            hosts.update(copies.out_hosts.tolist(), copies.in_hosts.tolist())
        self._mentioned_hosts.append(hosts)

    def _check_plan(self, plan: StepPlan) -> None:
        """Every row computes something, within every limit, and occurs once."""
        ends = plan.starts + plan.lengths
        assert (plan.lengths > 0).all(), "a row that computes nothing"
        assert plan.num_tokens <= self.limits.max_num_batched_tokens, "over budget"
        assert (ends < self.limits.max_model_len).all(), "KV past what any token needs"
        assert len(set(plan.slots.tolist())) == len(plan.slots) <= self.limits.max_num_seqs

    def complete(self) -> None:
        """The device finishes its oldest step, once turns have found the masks it waits for."""
        self._look()
        while self.batcher.next_deadline_ns == 0:
            self.batcher.pass_time(self.now)
            self._look()
        plan = self._take_oldest()
        if plan.step in self._doomed:
            self._fail(plan)
            return
        result = self.device.run(plan)
        assert not result.failed, result.failed
        self.drafted += 0 if plan.drafts is None else len(plan.drafts.token_ids)
        self.accepted += len(result.token_ids) - int(np.count_nonzero(plan.samples))
        before = {serial: len(said) for serial, said in self.said.items()}
        live = [serial for serial in self._sampled_for if serial not in self.ended]
        self.batcher.complete(result)
        self._look()
        if not self.has_failed:
            for serial in live:
                said = len(self.said[serial]) - before[serial]
                may_be_more = plan.drafts is not None and said > 1
                assert said == 1 or may_be_more or self._jumps(serial), "a token was lost"

    def _jumps(self, serial: int) -> bool:
        """Whether a step may bring it many tokens, and later ones none."""
        return (self.requests[serial].grammar or "").startswith("jump")

    def _take_oldest(self) -> StepPlan:
        self._mentioned.popleft()
        self._mentioned_hosts.popleft()
        self._sampled_for = self._riders.popleft()
        return self.plans.popleft()

    def fail_step(self) -> None:
        """The device gives nothing for its oldest step, nor for those that were behind it."""
        self.has_failed = True
        if self.plans[0].step not in self._doomed:  # one that fails behind another dooms nobody
            self._doomed.update(plan.step for plan in self.plans)
        self.complete()

    def _fail(self, plan: StepPlan) -> None:
        self.device.skip(plan)
        self.batcher.fail(StepFailed(plan.step, STEP_ERROR))
        self._look()

    def fail_row(self, rng: random.Random) -> set[int]:
        """A row of the oldest step comes back useless, the others well; whose it may be."""
        if self.plans[0].step in self._doomed or not len(self.plans[0].slots):
            self.complete()
            return set()
        plan = self._take_oldest()
        self.has_failed = True
        result = self.device.run(plan)
        row = rng.randrange(len(plan.slots))
        sequence = self.batcher._ledger.sequences[int(plan.slots[row])]
        self.batcher.complete(with_failed_row(plan, result, row))
        self._look()
        return set() if sequence is None else {sequence.request.serial}

    def run(self, most: int = 10_000) -> None:
        """Plan ahead as far as allowed, then finish a step, until nothing is left."""
        for _ in range(most):
            while self.plan() is not None:
                pass
            if not self.plans:
                return
            self.complete()
        raise AssertionError("the engine does not come to an end")

    def run_until_ended(self, serial: int, most: int = 50) -> None:
        """The same until one request has ended."""
        for _ in range(most):
            if serial in self.ended:
                return
            while self.plan() is not None:
                pass
            assert self.plans, "nothing runs"
            self.complete()
        raise AssertionError(f"request {serial} waits too long")

    def _look(self) -> None:
        for masks in self.batcher.take_masks():
            self.device.sample(masks)
        report = self.batcher.take_report()
        if report is not None:
            self.reports.append(report)
            self.told.note(report)
            for serial, token_id in zip(
                report.serials.tolist(), report.token_ids.tolist(), strict=True
            ):
                assert serial not in self.ended, "a token after the end"
                self.said[serial].append(token_id)
            for admitted in report.admitted:
                self._check_hit(self.requests[admitted.serial], admitted.cached_tokens)
                self._check_account(self.requests[admitted.serial], admitted)
            for ended in report.ended:
                assert ended.serial not in self.ended, "ended twice"
                self.ended[ended.serial] = ended
        self.pool.check()
        self.batcher.check()
        self._check_tables()
        for blocks in self._mentioned:
            assert not any(map(self.pool.is_free, blocks)), "a step in flight touches a free block"
        if self.pool.host is not None:
            mentioned = set().union(*self._mentioned_hosts)
            assert mentioned.isdisjoint(self.pool.host.free), "a copy touches a free block"

    def _check_tables(self) -> None:
        """The ledger and the pool agree on who holds how many blocks."""
        ledger, told = self.batcher._ledger, self.batcher._blocks._released
        for slot in set(range(self.limits.num_slots)) - set(told):
            assert ledger.covered[slot] == len(self.pool.table(slot)) * BLOCK, f"slot {slot}"

    def _check_hit(self, request: Generate, cached_tokens: int) -> None:
        """What was found must have been said before, under the same salt."""
        prefix = request.prompt[:cached_tokens].tolist()
        assert not prefix or any(
            other.cache_salt == request.cache_salt
            and [*other.prompt.tolist(), *self.said[serial]][:cached_tokens] == prefix
            for serial, other in self.requests.items()
            if serial != request.serial
        ), "a prefix of another salt was found"

    def _check_account(self, request: Generate, admitted: Admitted) -> None:
        """A difference is one from something said before, under the same salt and nowhere else."""
        account, found = admitted.account, admitted.cached_tokens
        assert (account is not None) == self.limits.prefix_caching
        if account is None or account.first_difference is None:
            return
        position, prompt = account.first_difference, request.prompt.tolist()
        assert account.end is PrefixEnd.NEW
        assert found <= position < found + BLOCK
        others = [
            [*other.prompt.tolist(), *self.said[serial]]
            for serial, other in self.requests.items()
            if other.cache_salt == request.cache_salt and serial != request.serial
        ]
        assert any(
            len(said) > position
            and said[:position] == prompt[:position]
            and said[position] != prompt[position]
            for said in others
        ), "a difference from nothing that was said under this salt"

    def _watch_reservations(self) -> None:
        """Rule 9: who gives way in a message gives no more than its demands can use."""
        reserve = self.pool.reserve

        def watched(ask: ReserveBlocks) -> BlocksReserved:
            answer = reserve(ask)
            if len(answer.preempted):
                stays = ~np.isin(ask.slots, answer.preempted)
                unmet = int((ask.wanted - answer.granted)[stays].sum())
                assert self.pool.num_free + len(self.pool._due) <= unmet, "a block for nothing"
            return answer

        self.pool.reserve = watched  # type: ignore[method-assign]  # it watches, and passes on

    def want_weights(self, source: str) -> None:
        """An operator wants other weights; the device loads them when `load_weights` is called."""
        self.batcher.weights.want(source)
        self._look()

    def load_weights(self) -> None:
        """If no step is in flight any more the device begins to load what is wanted; the next call
        says that it has."""
        if self._loaded:
            self._loaded.pop()
            self.batcher.weights.loaded()
        source = self.batcher.weights.begin_loading()
        if source is None:
            return
        self._look()
        assert not self.plans, "weights change under a step"
        assert self.pool.num_cached == self.pool.num_held == 0, "something computed survived"
        assert self.pool.host is None or not self.pool.host.num_held, "an image survived"
        self.device.load_weights(source, self._loaded.append)
        for serial, said in self.said.items():
            if serial not in self.ended:
                self.oracles[serial].append((len(said), self.device.oracle))
        self._look()

    def finish_weights(self) -> None:
        """Complete what is in flight before wanted weights, and load them."""
        while self.batcher.weights.is_awaited:
            while self.plans:
                self.complete()
            self.load_weights()

    def structured_answer(self, request: Generate) -> tuple[list[int], FinishReason]:
        """The same for a request with a grammar, and how it ends."""
        return structured_answer(self.oracles[request.serial], request)

    def answer(self, request: Generate) -> list[int]:
        """What a run of the request says that nothing disturbs but the change of weights."""
        if request.grammar is not None:
            return self.structured_answer(request)[0]
        said: list[int] = []
        prompt, stops = request.prompt.tolist(), request.stop_token_ids
        for start, oracle in self.oracles[request.serial]:
            del said[start:]
            said += oracle.answer([*prompt, *said], request.max_tokens - start, stops=stops)
        return said

    @property
    def preemptions(self) -> int:
        return sum(len(report.preempted) for report in self.reports)

    def assert_is_empty(self) -> None:
        assert self.batcher.num_running == self.batcher.num_waiting == 0
        assert self.pool.num_free == self.pool.num_blocks, "blocks leaked"
        if self.pool.host is not None:
            assert self.pool.host.num_free == self.pool.host.num_blocks, "host blocks leaked"
        assert self.batcher.ledger.num_taken == 0, "slots leaked"
