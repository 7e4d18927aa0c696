"""A seed's script. All chance is spent here."""

import random

from .script import (
    Abort,
    BreakDevice,
    Cancel,
    Close,
    Drain,
    FailRow,
    FailStep,
    KillExecutor,
    Operation,
    Pause,
    Pin,
    ReloadWeights,
    ResetCache,
    Resume,
    Script,
    Settings,
    Submit,
    Unpin,
)

STEP = 10  # milliseconds that a step takes (tests/engines.py)


def draw_script(seed: int) -> Script:
    """The script of a seed."""
    rng = random.Random(seed)
    return _crowded(rng) if rng.random() < 0.1 else _Draw(rng).script()


def _crowded(rng: random.Random) -> Script:
    """Many long answers at once in a pool that holds one of them: they take from each other."""
    settings = Settings(
        num_host_blocks=rng.choice([None, None, 4, 100]),
        max_num_seqs=8,
        steps_in_flight=rng.choice([1, 2, 3, 4]),
        prefix_caching=rng.choice([True, False]),
    )
    submits = [
        Submit(
            at=rng.randrange(20),
            name=f"r{number}",
            own=rng.randint(1, 12),
            tail=rng.randrange(1_000),
            max_tokens=rng.randint(30, 52),
        )
        for number in range(8)
    ]
    return Script(settings, tuple(submits))


class _Draw:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.span = rng.choice([20, 100, 400])  # milliseconds in which requests come
        self.is_reliable = rng.random() < 0.6
        self.is_polite = rng.random() < 0.2  # nobody is impatient and nothing is reset
        self.classes = rng.choice([[0], [0, 0, 0, 1, -1]])

    def script(self) -> Script:
        settings = self.settings()
        operations: list[Operation] = []
        for number in range(self.rng.choice([3, 6, 10, 16])):
            submit = self.submit(f"r{number}", operations)
            operations.append(submit)
            if not self.is_polite and self.rng.random() < 0.25:
                operations.append(self.impatience(submit))
        if not self.is_polite:
            operations += self.controls()
            if settings.prefix_caching:
                operations += self.pins()
        if not self.is_reliable:
            operations += self.faults()
        return Script(settings, tuple(operations))

    def settings(self) -> Settings:
        pick = self.rng.choice
        max_num_seqs = pick([1, 2, 4, 8])
        budget = max(pick([1, 5, 16, 64]), max_num_seqs)
        threshold = pick([None, None, 3])
        return Settings(
            num_blocks=pick([16, 16, 17, 24, 64]),
            num_host_blocks=pick([None, None, 4, 100]),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold if budget >= 3 else None,
            steps_in_flight=pick([1, 2, 2, 3, 4]),
            prefix_caching=pick([True, True, False]),
            watermark=pick([0.0, 0.1]),
            ageing=pick([None, None, 0.1]),
            prefix_ttl=pick([None, None, 0.1]),
            max_waiting=pick([2, 100, 100]),
            eos_every=pick([0, 10, 40]),
            drafts=pick([(), (), ("right", "partly", "none"), ("random", "wrong", "right")]),
        )

    def submit(self, name: str, before: list[Operation]) -> Submit:
        rng, pick = self.rng, self.rng.choice
        shared, own = rng.randrange(36), rng.randint(1, 12)
        family, tail = rng.randrange(3), rng.randrange(1_000)
        former = [operation for operation in before if isinstance(operation, Submit)]
        if former and rng.random() < 0.2:  # the very same prompt again
            same = pick(former)
            family, shared, own, tail = same.family, same.shared, same.own, same.tail
        max_tokens = rng.randint(1, 64 - shared - own) if rng.random() < 0.9 else 64
        is_patient = self.is_polite or rng.random() < 0.8
        return Submit(
            at=self.moment(self.span),
            hops=rng.randrange(4),
            name=name,
            family=family,
            shared=shared,
            own=own,
            tail=tail,
            max_tokens=max_tokens,
            min_tokens=pick([0, 0, 0, min(max_tokens, 4)]),
            stop=pick([(), (), (), ("a", "bc"), ("~~",)]),
            stop_token_ids=pick([(), (), (), (40,)]),
            ignore_eos=rng.random() < 0.2,
            priority=pick(self.classes),
            salt=pick([None, None, None, "other"]),
            deadline=None if is_patient else pick([None, 5, 40, 150]),
            queue_timeout=None if is_patient else pick([None, 5, 40]),
            pause=pick([0, 0, 0, 7, 60]),
            leave_after=None if is_patient else pick([None, 0, 2, 9]),
            is_whole=rng.random() < 0.3,
        )

    def impatience(self, submit: Submit) -> Operation:
        kind = self.rng.choice([Abort, Cancel])
        at = submit.at + self.moment(200)
        return kind(at=at, hops=self.rng.randrange(6), name=submit.name)

    def controls(self) -> list[Operation]:
        rng, found = self.rng, list[Operation]()
        if rng.random() < 0.3:
            at = self.moment(self.span)
            found.append(Pause(at=at, hops=rng.randrange(6)))
            found.append(Resume(at=at + self.moment(100), hops=rng.randrange(6)))
        for _ in range(rng.choice([0, 0, 1, 3])):
            found.append(ResetCache(at=self.moment(self.span + 100), hops=rng.randrange(6)))
        if rng.random() < 0.1:
            timeout = rng.choice([None, 50])
            found.append(Drain(at=self.moment(self.span), hops=rng.randrange(6), timeout=timeout))
        for number in range(rng.choice([0, 0, 0, 0, 1, 2])):
            at, hops = self.moment(self.span + 100), rng.randrange(6)
            found.append(ReloadWeights(at=at, hops=hops, source=f"weights {number}"))
        if rng.random() < 0.03:
            found.append(Close(at=self.moment(self.span + 100), hops=rng.randrange(6)))
        return found

    def pins(self) -> list[Operation]:
        rng, found = self.rng, list[Operation]()
        for number in range(rng.choice([0, 0, 0, 1, 2])):
            name, at, hops = f"p{number}", self.moment(self.span), rng.randrange(6)
            pin = Pin(
                at=at,
                hops=hops,
                name=name,
                family=rng.randrange(3),
                shared=rng.randint(4, 36),
                salt=rng.choice([None, "other"]),
                ttl=rng.choice([None, 100]),
            )
            found += [pin, Unpin(at=at + self.moment(300), hops=hops, name=name)]
        return found

    def faults(self) -> list[Operation]:
        rng, found = self.rng, list[Operation]()
        for _ in range(rng.choice([0, 1, 3])):
            at = self.moment(self.span + 200)
            found.append(FailRow(at=at, hops=rng.randrange(6), row=rng.randrange(8)))
        for _ in range(rng.choice([0, 1, 3])):
            found.append(FailStep(at=self.moment(self.span + 200), hops=rng.randrange(6)))
        if rng.random() < 0.08:
            kind = rng.choice([BreakDevice, KillExecutor])
            found.append(kind(at=self.moment(self.span + 200)))
        return found

    def moment(self, until: int) -> int:
        """Mostly when a step ends, for that is when messages meet."""
        at = self.rng.randrange(until + 1)
        return at if self.rng.random() < 0.3 else at // STEP * STEP
