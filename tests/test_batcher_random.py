"""Random lives of the pure cores against the oracle; every call is checked (tests/batching.py)."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from stepahead.actors.batching.limits import MAX_PREEMPTIONS
from stepahead.gpu.oracle import Oracle
from stepahead.messages import Ended, FinishReason, Generate, UnpinPrefix

from .batching import STEP_ERROR, World, make_limits
from .drafters import ScriptedDrafter
from .told import TOP

KINDS = ("right", "wrong", "partly", "random", "none")  # of drafters


@dataclass
class RandomLife:
    """A world that is prodded at random, and what must be true of it at the end."""

    seed: int
    requests: list[Generate] = field(default_factory=list)
    given_up: set[int] = field(default_factory=set)
    compiling: list[int] = field(default_factory=list)  # serials that wait for their grammar
    pins: int = 0
    told: int = 0  # tokens whose logprobs somebody was told

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.operator = random.Random(f"weights of {self.seed}")
        pick = self.random.choice
        self.classes = pick([[0], [0, 0, 0, 1, 2]])
        limits = make_limits(
            max_model_len=64,
            max_num_seqs=pick([1, 2, 4, 8]),
            max_num_batched_tokens=pick([1, 5, 16, 64]),
            long_prefill_token_threshold=pick([None, 3]),
            steps_in_flight=pick([1, 2, 2, 3, 4]),
            prefix_caching=pick([True, True, False]),
            ageing_ns=pick([None, None, 20]),
            num_host_blocks=random.Random(~self.seed).choice([0, 0, 3, 12, 100]),
            prefix_ttl_ns=pick([None, None, 50]),
            holds_sampling=self.seed % 3 > 0,
        )
        if random.Random(f"chunks of {self.seed}").random() < 0.3:  # of 32 or 16 positions
            limits = replace(limits, long_prefill_token_threshold=48, doubling_context=32)
        num_blocks, watermark = pick([16, 17, 24, 64]), pick([0, 1, 3])
        oracle = Oracle(eos_every=pick([0, 10, 40]))
        self.world = World(
            limits=limits,
            num_blocks=num_blocks,
            watermark=watermark,
            oracle=oracle,
            drafter=self._drafter(oracle),
        )
        self.random_asks = random.Random(f"logprobs of {self.seed}")
        self.random_grammar = random.Random(f"grammars of {self.seed}")
        self.families = [[self.random.randrange(256) for _ in range(40)] for _ in range(3)]

    def _drafter(self, oracle: Oracle) -> ScriptedDrafter | None:
        pick = random.Random(f"drafts of {self.seed}").choice
        kinds = pick([None, None, ("right", "none"), ("partly", "wrong", "random"), KINDS])
        return None if kinds is None else ScriptedDrafter(oracle, kinds, most=pick([1, 3, 6]))

    def add(self) -> None:
        shared = self.random.choice(self.families)[: self.random.randrange(40)]
        own = [self.random.randrange(256) for _ in range(self.random.randrange(1, 12))]
        prompt = shared + own
        if self.requests and self.random.random() < 0.2:
            prompt = self.random.choice(self.requests).prompt.tolist()  # the very same again
        serial = len(self.requests)
        request = self.world.request(
            serial,
            prompt,
            max_tokens=self.random.randint(1, 64 - len(prompt)),
            priority=self.random.choice(self.classes),
            stop_token_ids=self.random.choice([(256,), (256,), (40, 256), ()]),
            cache_salt=self.random.choice([b"", b"", b"other"]),
            deadline_ns=self.random.choice([None] * 9 + [self.world.now + 30]),
            queue_deadline_ns=self.random.choice([None] * 9 + [self.world.now + 5]),
            grammar=self._grammar(),
            asks=self._asks(len(prompt)),
        )
        self.requests.append(request)
        if request.grammar is not None:
            self.compiling.append(serial)

    def _grammar(self) -> str | None:
        """In every fourth life some follow a grammar."""
        pick = self.random_grammar.choice
        if self.seed % 4 or pick([True, False, False]):
            return None
        kind = pick(["over", "over", "open", "refuse", "dead", "jump", "dear"])
        return f"{kind} {pick([2, 5, 10, 30])}"

    def _asks(self, num_prompt: int) -> dict[str, int]:
        """In every second life some are told logprobs, of the prompt from anywhere in it."""
        pick = self.random_asks
        if self.seed % 2 or pick.random() < 0.4:
            return {}
        start = pick.choice([0, pick.randrange(num_prompt)])
        return pick.choice(
            [{"logprobs": TOP}, {"prompt_logprobs": TOP, "prompt_logprobs_start": start}]
        ) | pick.choice([{}, {"logprobs": TOP}])

    def compile_some(self) -> None:
        for serial in self.compiling.copy():
            what = self.random_grammar.random()
            if what < 0.3:
                self.compiling.remove(serial)
                self.world.compile(serial, "no such rule" if what < 0.03 else None)
                self.given_up.update({serial} if what < 0.03 else ())

    def give_up(self) -> None:
        if self.requests:
            serial = self.random.choice(self.requests).serial
            self.given_up.add(serial)
            end = self.random.choice([self.world.batcher.abort, self.world.batcher.stop_matched])
            end(serial)

    def prod(self) -> None:
        self.world.pass_time()
        if self.seed % 3 == 0:
            self.change_the_weights()
        self.compile_some()
        what = self.random.random()
        if what < 0.15:
            self.add()
        elif what < 0.18:
            self.give_up()
        elif what < 0.195:
            self.change_the_cache()
        elif what < 0.20:
            self.world.batcher.is_paused = not self.world.batcher.is_paused
        elif what < 0.65:
            self.world.plan()
        elif self.world.plans:
            self.finish_a_step()

    def change_the_weights(self) -> None:
        """In some lives an operator has the device load others now and then."""
        what = self.operator.random()
        if what < 0.02 and not self.world.batcher.weights.is_awaited:
            self.world.want_weights(f"weights {self.world.now}")
        elif what > 0.9:
            self.world.load_weights()

    def change_the_cache(self) -> None:
        """Reset it, or pin what somebody has asked for or will, or let a pin go."""
        what = self.random.random()
        if what < 0.3:
            self.world.pool.reset_cache()
        elif what < 0.8:
            self.pins += 1
            salt = self.random.choice([b"", b"other"])
            self.world.pin(self.pins, self.random.choice(self.families), salt)
        else:
            pin = self.random.randint(1, self.pins + 1)
            self.world.pool.unpin(UnpinPrefix(pin), self.world.now)

    def finish_a_step(self) -> None:
        """Mostly well; now and then the device fails a row, or the step."""
        what = self.random.random()
        if what < 0.01:
            self.world.fail_step()
        elif what < 0.03:
            self.given_up.update(self.world.fail_row(self.random))
        else:
            self.world.complete()

    def assert_everybody_got_their_own(self) -> None:
        for request in self.requests:
            said, answer = self.world.said[request.serial], self.world.answer(request)
            ended = self.world.ended[request.serial]
            assert said == answer[: len(said)], f"{request.request_id} heard another's tokens"
            oracles = self.world.oracles[request.serial]
            oracle = oracles[0][1] if len(oracles) == 1 else None
            self.told += self.world.told.check(request, said, oracle)
            if request.grammar is not None and said == answer:
                assert request.serial in self.given_up or self.has_right_end(request, ended)
            if ended.reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert said == answer or request.serial in self.given_up
            elif ended.reason is FinishReason.ERROR:
                is_expected = request.serial in self.given_up or ended.error == STEP_ERROR
                assert is_expected or self.is_refused(request, said)
            else:
                is_timed = request.deadline_ns is not None or request.queue_deadline_ns is not None
                assert is_timed or request.serial in self.given_up

    def has_right_end(self, request: Generate, ended: Ended) -> bool:
        is_timed = request.deadline_ns is not None or request.queue_deadline_ns is not None
        is_cut = (is_timed and ended.reason is FinishReason.TIMEOUT) or ended.error == STEP_ERROR
        return is_cut or ended.reason is self.world.structured_answer(request)[1]

    def is_refused(self, request: Generate, said: list[int]) -> bool:
        """Whether the grammar is what ended the request, where it should."""
        if request.grammar is None:
            return False
        return self.world.structured_answer(request) == (
            said,
            FinishReason.ERROR,
        )

    def assert_preemptions_are_bounded(self) -> None:
        """Rule 14, where everybody stays of one class and the device never fails."""
        is_flat = self.classes == [0] and self.world.limits.ageing_ns is None
        if is_flat and not self.world.has_failed:
            counts = Counter(p.serial for report in self.world.reports for p in report.preempted)
            assert max(counts.values(), default=0) <= MAX_PREEMPTIONS


class PressedLife(RandomLife):
    """Eight seats over few blocks, one class, and an engine that nothing fails or changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.classes = [0]
        limits = make_limits(
            max_model_len=64,
            max_num_seqs=8,
            steps_in_flight=self.seed % 4 + 1,
            prefix_caching=self.seed % 2 > 0,
        )
        self.world = World(limits=limits, num_blocks=16)

    def finish_a_step(self) -> None:
        self.world.complete()

    def change_the_weights(self) -> None:
        """Never."""


def live_and_check(seed: int, kind: type[RandomLife] = RandomLife) -> RandomLife:
    life = kind(seed)
    for _ in range(250):
        life.prod()

    life.world.batcher.is_paused = False
    life.world.finish_weights()
    while life.compiling:
        life.compile_some()
    life.world.run()
    life.world.plan()

    life.assert_everybody_got_their_own()
    life.assert_preemptions_are_bounded()
    life.world.assert_is_empty()
    return life


@pytest.mark.parametrize("seed", range(45))
def test_everybody_gets_exactly_their_own_tokens_and_every_block_comes_back(seed: int) -> None:
    live_and_check(seed)  # asserts


@pytest.mark.parametrize("seed", range(8))
def test_under_pressure_preemptions_are_bounded_and_everybody_ends(seed: int) -> None:
    life = live_and_check(seed, PressedLife)  # asserts

    assert life.world.preemptions > 0


def test_random_lives_tell_of_many_tokens() -> None:
    assert sum(live_and_check(seed).told for seed in (0, 4)) > 200


def test_random_lives_are_rough_enough_to_preempt() -> None:
    preemptions = 0
    for seed in range(20):
        life = RandomLife(seed)
        for _ in range(250):
            life.prod()
        preemptions += life.world.preemptions

    assert preemptions > 20


def test_random_lives_accept_and_reject_drafts() -> None:
    accepted = rejected = 0
    for seed in range(20):
        life = RandomLife(seed)
        for _ in range(250):
            life.prod()
        accepted += life.world.accepted
        rejected += life.world.drafted - life.world.accepted

    assert accepted > 20
    assert rejected > 20


def test_random_lives_hold_rows_and_end_by_grammars() -> None:
    held = 0
    reasons: Counter[FinishReason] = Counter()
    for seed in range(0, 64, 4):
        life = live_and_check(seed)
        held += life.world.held
        reasons.update(
            life.world.ended[request.serial].reason
            for request in life.requests
            if request.grammar is not None and request.serial not in life.given_up
        )

    assert held > 50
    assert {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR} <= set(reasons)
