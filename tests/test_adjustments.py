"""What requests do to their logits, against a reference that is written token by token."""

from collections.abc import Sequence

import numpy as np
import pytest

from stepahead import SamplingParams
from stepahead.gpu.adjuster import Adjuster
from stepahead.messages import Adjustments, frozen_longs
from stepahead.messages.arrays import frozen_ints
from stepahead.messages.token_bias import TokenBias

from .device_driver import make_row
from .engines import make_config, make_device, make_engine, virtual
from .sampling_reference import adjusted

VOCAB = 12
SLOTS = 6
LENGTH = 48

Rng = np.random.Generator


def draw_adjustments(rng: Rng) -> Adjustments | None:
    """Some of everything; None for a third of them."""
    if rng.random() < 0.33:
        return None

    def maybe(value: object, otherwise: object) -> object:
        return value if rng.random() < 0.4 else otherwise

    ids = rng.integers(0, VOCAB, 30).tolist()
    return Adjustments(
        repetition_penalty=maybe(float(rng.choice([0.5, 1.5, 3])), 1.0),  # type: ignore[arg-type]
        frequency_penalty=maybe(float(rng.normal()), 0.0),  # type: ignore[arg-type]
        presence_penalty=maybe(float(rng.normal()), 0.0),  # type: ignore[arg-type]
        logit_bias=TokenBias({ids[0]: 2.5, ids[1]: -np.inf} if rng.random() < 0.4 else {}),
        allowed_token_ids=maybe(tuple(ids[2:10]), None),  # type: ignore[arg-type]
        bad_words=maybe((tuple(ids[10:11]), tuple(ids[11:13]), tuple(ids[13:16])), ()),  # type: ignore[arg-type]
        no_repeat_ngram_size=maybe(int(rng.integers(1, 5)), 0),  # type: ignore[arg-type]
    )


class Rows:
    """Sequences in slots, and an adjuster that sees of them what a device sees."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self.table = np.zeros((SLOTS, LENGTH), dtype=np.int32)
        self.adjuster = Adjuster(self.table)
        self.prompts: list[list[int]] = [[] for _ in range(SLOTS)]
        self.said: list[list[int]] = [[] for _ in range(SLOTS)]
        self.wants: list[Adjustments] = [Adjustments()] * SLOTS

    def start(self, slot: int) -> None:
        """Another request takes the slot."""
        self.prompts[slot] = self._tokens(int(self._rng.integers(1, 12)))
        self.said[slot] = []
        self.wants[slot] = draw_adjustments(self._rng) or Adjustments()
        self.begin_epoch(slot)

    def begin_epoch(self, slot: int) -> None:
        """The device is told all that is confirmed, and forgets what else it had."""
        tokens = self.prompts[slot] + self.said[slot]
        self.table[slot] = 7  # whatever was there
        self.table[slot, : len(tokens)] = tokens
        wants = None if self.wants[slot] == Adjustments() else self.wants[slot]
        row = make_row(
            slot, tokens, [], num_prompt_tokens=len(self.prompts[slot]), adjustments=wants
        )
        self.adjuster.apply([row])

    def sample(self, slots: Sequence[int]) -> None:
        """Adjust one step's logits, and compare them; then the rows go on, some by drafts."""
        drafts = [self._tokens(int(self._rng.choice([0, 0, 1, 3]))) for _ in slots]
        rows = [(slot, n) for slot, d in zip(slots, drafts, strict=True) for n in range(len(d) + 1)]
        starts = [len(self.prompts[slot]) + len(self.said[slot]) for slot in slots]
        for slot, start, draft in zip(slots, starts, drafts, strict=True):
            self.table[slot, start : start + len(draft)] = draft
        begins = dict(zip(slots, starts, strict=True))
        given = self._rng.normal(0, 2, (len(rows), VOCAB)).astype(np.float32)
        logits = given.copy()
        self.adjuster.adjust(
            logits,
            frozen_longs([slot for slot, _ in rows]),
            frozen_ints([begins[slot] + n for slot, n in rows]),
        )
        drafted = dict(zip(slots, drafts, strict=True))
        for place, (slot, n) in enumerate(rows):
            said = self.said[slot] + drafted[slot][:n]
            expected = adjusted(given[place], self.prompts[slot], said, self.wants[slot])
            np.testing.assert_allclose(logits[place], expected, rtol=1e-5, atol=1e-5)
        for slot, draft in drafted.items():
            self._go_on(slot, draft)

    def _go_on(self, slot: int, draft: list[int]) -> None:
        """Some of the draft is accepted, then a token is sampled; garbage stands behind it."""
        start = len(self.prompts[slot]) + len(self.said[slot])
        accepted = draft[: int(self._rng.integers(0, len(draft) + 1))]
        self.said[slot] += [*accepted, *self._tokens(1)]
        self.table[slot, start : start + len(accepted) + 1] = self.said[slot][-len(accepted) - 1 :]

    def _tokens(self, count: int) -> list[int]:
        return [int(token_id) for token_id in self._rng.integers(0, VOCAB, count)]


@pytest.mark.parametrize("seed", range(12))
def test_logits_are_adjusted_as_defined_whatever_became_of_the_slots(seed: int) -> None:
    """Steps of some of the slots, drafts, preemptions and other requests in the same slot."""
    rng = np.random.default_rng(seed)
    rows = Rows(rng)
    for slot in range(SLOTS):
        rows.start(slot)
    for _ in range(25):
        for slot in range(SLOTS):
            if len(rows.prompts[slot]) + len(rows.said[slot]) > LENGTH - 8 or rng.random() < 0.05:
                rows.start(slot)
            elif rng.random() < 0.1:
                rows.begin_epoch(slot)
        rows.sample(np.flatnonzero(rng.random(SLOTS) < 0.7).tolist() or [0])


def test_rows_that_adjust_nothing_are_not_touched_and_nothing_is_kept_for_them() -> None:
    rows = Rows(np.random.default_rng(0))
    for slot in range(SLOTS):
        rows.said[slot] = [1]
        rows.begin_epoch(slot)
    logits = np.full((1, VOCAB), np.nan, dtype=np.float32)

    rows.adjuster.adjust(logits, frozen_longs([2]), frozen_ints([3]))

    assert np.isnan(logits).all()
    assert not rows.adjuster.slots


def test_what_a_row_gets_does_not_depend_on_who_stands_beside_it() -> None:
    """Bit for bit: field cases 053 and 056."""
    rng = np.random.default_rng(3)
    rows = Rows(rng)
    for slot in range(SLOTS):
        rows.start(slot)
        rows.said[slot] = rng.integers(0, VOCAB, 9).tolist()
        rows.begin_epoch(slot)
    slots = np.arange(SLOTS)
    positions = frozen_ints([len(rows.prompts[slot]) + 9 for slot in range(SLOTS)])
    given = rng.normal(0, 2, (SLOTS, VOCAB)).astype(np.float32)
    together = given.copy()

    rows.adjuster.adjust(together, slots, positions)

    for slot in range(SLOTS):
        alone = given[[slot]].copy()
        rows.begin_epoch(slot)
        rows.adjuster.adjust(alone, slots[[slot]], positions[[slot]])
        assert np.array_equal(alone[0], together[slot])


@virtual
async def test_requests_one_after_the_other_share_what_is_kept_for_a_slot() -> None:
    params = SamplingParams(
        max_tokens=3, repetition_penalty=1.2, logit_bias={40: 1.0}, allowed_token_ids=(40, 41)
    )
    device = make_device(make_config(), draws=True)
    async with make_engine(device=device) as engine:
        for number in range(40):
            await engine.generate(f"request {number}", params)
        assert device._sampler is not None
        adjuster = device._sampler._adjuster
        assert len(adjuster.slots) <= 2  # the last one's, and one still behind its fence
