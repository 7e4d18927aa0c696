"""Sampling as the CUDA device does it, against sampling on the processor."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stepahead.gpu.adjuster import Adjuster
from stepahead.gpu.masks import allowed_tokens
from stepahead.gpu.row_failures import NONE_LEFT, NOT_NUMBERS
from stepahead.gpu.sampling import SamplingRows, sample
from stepahead.gpu.slots import SlotTables
from stepahead.gpu.uploads import on_host
from stepahead.messages import Adjustments, Floats, Ints, RowState
from stepahead.messages.arrays import Longs
from stepahead.messages.token_bias import TokenBias

from .interpreter import adjust, ops, sampler, sampling_tables

VOCAB = 70
SLOTS = 6
LENGTH = 64

Rng = np.random.Generator


def draw_row(rng: Rng, slot: int, token_ids: Ints, num_prompt_tokens: int) -> RowState:
    """A sequence with some of everything."""

    def maybe(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.35 else otherwise

    ids = rng.integers(0, VOCAB, 60).tolist()
    adjustments = Adjustments(
        repetition_penalty=maybe(float(rng.choice([0.5, 1.5, 3])), 1.0),
        frequency_penalty=maybe(float(rng.normal()), 0.0),
        presence_penalty=maybe(float(rng.normal()), 0.0),
        logit_bias=TokenBias(maybe({ids[0]: 2.5, ids[1]: -np.inf, ids[2]: -1.0}, {})),
        allowed_token_ids=maybe(tuple(ids[3:40]), None),
        bad_words=maybe((tuple(ids[40:41]), tuple(ids[41:43]), tuple(ids[43:46])), ()),
        no_repeat_ngram_size=maybe(int(rng.integers(1, 5)), 0),
    )
    return RowState(
        slot=slot,
        epoch=0,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens,
        block_ids=np.zeros(0, dtype=np.int32),
        temperature=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
        top_k=maybe(int(rng.choice([1, 5, 50, 1000])), 0),
        top_p=maybe(float(rng.choice([0.1, 0.7, 0.95])), 1.0),
        min_p=maybe(float(rng.choice([0.02, 0.3, 1.0])), 0.0),
        typical_p=maybe(float(rng.choice([0.2, 0.9])), 1.0),
        seed=int(rng.integers(-(2**63), 2**63)),
        index=int(rng.integers(0, 3)),
        min_end=len(token_ids) + int(rng.choice([0, 2])),
        banned_ids=maybe(tuple(ids[46:49]), ()),
        adjustments=maybe(None, adjustments),
    )


class Both:
    """Sequences in slots, on the processor and as the CUDA device keeps them."""

    def __init__(self, rng: Rng, by: ops.Ops) -> None:
        self._rng = rng
        self._ops = by
        self.slots = SlotTables(SLOTS, LENGTH - 1, 16)
        self._adjuster = Adjuster(self.slots.tokens)
        self.tokens = torch.from_numpy(self.slots.tokens)  # one memory, written by both devices
        self.tables = sampling_tables.SamplingTables(self.tokens, VOCAB, on_host)
        self.ends = np.zeros(SLOTS, dtype=np.int32)

    def start(self, slot: int) -> None:
        """Another sequence takes the slot, some way into its answer."""
        prompt, said = int(self._rng.integers(1, 9)), int(self._rng.integers(0, 9))
        token_ids = self._rng.integers(0, VOCAB, prompt + said).astype(np.int32)
        self.begin(draw_row(self._rng, slot, token_ids, prompt))

    def begin(self, row: RowState) -> None:
        self.slots._replace(row)
        self._adjuster.apply([row])
        self.tables.lines[row.slot] = torch.from_numpy(self.tables.begin(row))
        for fill in self.tables.take_fills():
            fill()
        self.ends[row.slot] = len(row.token_ids)

    def step(self, chosen: Longs) -> Ints:
        """Sample some slots on both, some rows with drafts or masks, some of no numbers; gives the
        ids, which must be equal."""
        slots, positions = self._rows(chosen)
        logits = torch.from_numpy(self._rng.normal(0, 3, (len(slots), VOCAB)).astype(np.float32))
        for row in np.flatnonzero(self._rng.random(len(slots)) < 0.1).tolist():
            at = self._rng.permutation(VOCAB)[: self._rng.choice([1, VOCAB])]
            logits[row, torch.from_numpy(at)] = float(self._rng.choice([np.nan, np.inf, -np.inf]))
        masks = self._masks(len(slots))
        expected = self._on_processor(logits.numpy().copy(), slots, positions, masks)
        padded = np.append(slots, [-1, -1]).astype(np.int32)
        ends = np.append(positions, [0, 0]).astype(np.int32)

        given = sampler.sample_rows(
            torch.cat([logits, torch.full((2, VOCAB), torch.nan)]),
            torch.from_numpy(padded),
            torch.from_numpy(ends),
            self.tables,
            self.tables.needs(slots, positions),
            as_rows(masks, len(padded)),
            ops=self._ops,
        )

        assert given.tolist() == [*expected.tolist(), 0, 0]
        self.slots.record(self.slots.places_of(slots, positions), expected)
        self.ends[chosen] += 1
        return expected

    def _masks(self, num_rows: int) -> dict[int, Ints]:
        """Of some rows; one word is missing, so the last tokens are not allowed."""
        words = self._rng.integers(-(2**31), 2**31, (num_rows, VOCAB // 32), dtype=np.int64)
        rows = np.flatnonzero(self._rng.random(num_rows) < 0.2)
        return {row: words[row].astype(np.int32) for row in rows.tolist()}

    def _rows(self, chosen: Longs) -> tuple[Longs, Ints]:
        counts = self._rng.choice([1, 1, 3], len(chosen))
        slots = chosen.repeat(counts)
        positions = np.concatenate(
            [self.ends[slot] + np.arange(n) for slot, n in zip(chosen, counts, strict=True)]
        ).astype(np.int32)
        for slot, n in zip(chosen, counts, strict=True):
            drafts = self._rng.integers(0, VOCAB, n - 1)
            self.slots.tokens[slot, self.ends[slot] : self.ends[slot] + n - 1] = drafts
        return slots, positions

    def _on_processor(
        self, logits: Floats, slots: Longs, positions: Ints, masks: dict[int, Ints]
    ) -> Ints:
        self._adjuster.adjust(logits, slots, positions)
        for row, mask in masks.items():
            logits[row, ~allowed_tokens(mask, VOCAB)] = -np.inf
        return sample(logits, SamplingRows.of(self.slots, slots, positions))


def as_rows(masks: dict[int, Ints], num_rows: int) -> Any:
    """Masks as the device gets them; none where no row has any."""
    if not masks:
        return None
    rows = torch.full((num_rows,), -1, dtype=torch.int32)
    rows[list(masks)] = torch.arange(len(masks), dtype=torch.int32)
    return adjust.RowMasks(torch.from_numpy(np.stack(list(masks.values()))), rows)


def run(both: Both, rng: Rng, steps: int) -> set[int]:
    """Steps of some of the slots; gives all ids below 0 that were told."""
    failed: set[int] = set()
    for slot in range(SLOTS):
        both.start(slot)
    for _ in range(steps):
        for slot in range(SLOTS):
            if both.ends[slot] > LENGTH - 6 or rng.random() < 0.1:
                both.start(slot)
        failed.update(both.step(rng.permutation(SLOTS)[: rng.integers(1, SLOTS)]).tolist())
    return {token_id for token_id in failed if token_id < 0}


def test_references_sample_what_the_processor_samples() -> None:
    failed: set[int] = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        failed |= run(Both(rng, ops.TorchOps()), rng, steps=12)

    assert failed == {NOT_NUMBERS, NONE_LEFT}


@pytest.mark.parametrize("seed", range(2))
def test_kernels_sample_what_the_processor_samples(seed: int) -> None:
    rng = np.random.default_rng(seed + 100)
    run(Both(rng, ops.TritonOps()), rng, steps=2)


class Kinds:
    """Notes the kinds of calls, of which each is compiled by itself on a GPU."""

    count_tokens = staticmethod(ops.TorchOps.count_tokens)

    def __init__(self) -> None:
        self.seen: set[tuple[object, ...]] = set()

    def adjust(self, logits: Tensor, *where: Any) -> Tensor:
        self.seen.add(("adjust", logits.dtype, where[-1].masks is not None))
        return ops.TorchOps.adjust(logits, *where)

    def find_cuts(self, logits: Tensor, *where: Any, **top: Any) -> Tensor:
        self.seen.add(("cuts", logits.dtype, *top.values()))
        return ops.TorchOps.find_cuts(logits, *where, **top)

    def draw(self, logits: Tensor, **how: Any) -> Tensor:
        self.seen.add(("draw", logits.dtype, how["cuts"] is not None))
        return ops.TorchOps.draw(logits, **how)


def test_padding_is_sampled_in_every_way_that_there_is() -> None:
    kinds: Any = Kinds()
    floats = (torch.bfloat16, torch.float32)
    tops = ((False, False), (True, False), (True, True))

    sampler.sample_padding(torch.zeros(3, VOCAB, dtype=torch.bfloat16), kinds)

    assert kinds.seen == {
        *(("adjust", dtype, has_masks) for dtype in floats for has_masks in (False, True)),
        *(("cuts", dtype, *top) for dtype in floats for top in tops),
        *(("draw", dtype, has_cuts) for dtype in floats for has_cuts in (False, True)),
    }
