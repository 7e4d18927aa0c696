"""The simulated device: the real seam and slot tables over an oracle, in the loop's own time.

Its KV memory holds each position's token and the hash of the prefix up to it. Attention reads
both back through the block table and checks the chain, so a wrong block table or a stale or
unwritten block is found in the step it happens.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..messages import (
    Bools,
    Copies,
    Floats,
    Ints,
    Logprobs,
    Longs,
    RowFailed,
    SampleRows,
    StepDone,
    StepPlan,
    WeightsLoaded,
    frozen_ints,
)
from .device import DeviceFacts, LoadedAddress, StepAddress
from .host import HostMemory
from .logprobs import StepLogprobs
from .masks import HeldMasks, allowed_tokens
from .oracle import Hashes, Oracle, is_chain
from .row_failures import failure_of
from .slots import SlotTables, expand_rows
from .verify import accept, sampled_positions, sampled_tokens

if TYPE_CHECKING:
    from .logits_processors import LogitsProcessors
    from .oracle_sampling import OracleSampler

CallLater: TypeAlias = Callable[[float, Callable[[], None]], object]

_NO_MASKED = "its mask allows no token"
LOAD_S = 0.5  # how long loading weights takes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long a step takes, by a roofline: the larger of moving bytes and doing arithmetic.

    The defaults are those of an 8-billion-parameter model in 16 bits on a large GPU.
    """

    weight_bytes: float = 15.0e9
    kv_bytes_per_token: float = 131_072
    flops_per_token: float = 15.0e9
    bandwidth: float = 4.3e12  # bytes per second
    flops_rate: float = 790e12  # per second
    overhead_s: float = 0.2e-3  # launching and sampling
    host_bandwidth: float = 55e9  # bytes per second between device and host, each way

    def seconds(self, num_tokens: int, num_kv_tokens: int) -> float:
        """For `num_tokens` computed positions that read `num_kv_tokens` positions of KV."""
        moved = self.weight_bytes + self.kv_bytes_per_token * num_kv_tokens
        done = self.flops_per_token * num_tokens
        return self.overhead_s + max(moved / self.bandwidth, done / self.flops_rate)

    def host_memory(self, num_blocks: int, block_size: int) -> HostMemory:
        """Host memory for so many blocks, and what moving one costs against computing it."""
        return HostMemory(
            num_blocks=num_blocks,
            block_copy_s=self.kv_bytes_per_token * block_size / self.host_bandwidth,
            token_s=self.flops_per_token / self.flops_rate,
        )


class SimulatedDevice:
    """Runs steps one after another, each for as long as its step time says."""

    def __init__(
        self,
        facts: DeviceFacts,
        num_slots: int,
        call_later: CallLater,
        *,
        oracle: Oracle | None = None,
        step_time: StepTime | None = None,
        draws: bool = False,
        processors: "LogitsProcessors | None" = None,
    ) -> None:
        """With `draws` tokens are drawn at the requests' temperatures; else the oracle's word is
        taken, or the likeliest where a request adjusts its logits."""
        self.facts = facts
        self.oracle = oracle or Oracle()
        self._step_time = step_time
        self._call_later = call_later
        self._slots = SlotTables(num_slots, facts.max_model_len, facts.block_size)
        num_positions = facts.num_blocks * facts.block_size
        self._kv_tokens = np.full(num_positions, -1, dtype=np.int32)
        self._kv_hashes = np.zeros(num_positions, dtype=np.uint64)
        self._host_tokens = np.full((facts.host.num_blocks, facts.block_size), -1, dtype=np.int32)
        self._host_hashes = np.zeros(self._host_tokens.shape, dtype=np.uint64)
        self._draws = draws
        self._processors = processors
        self._sampler: OracleSampler | None = None  # once there is a row for it
        self._queue: deque[tuple[StepPlan, StepAddress]] = deque()
        self._masks = HeldMasks()
        self._waits = False  # the oldest step is computed, and waits for masks
        self._is_closed = False

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        """Queue a step; its result is posted when its time has passed."""
        self._queue.append((plan, done))
        if len(self._queue) == 1:
            self._start_next()

    def sample(self, masks: SampleRows) -> None:
        """Masks for held rows; the step that waited for them is over."""
        self._masks.add(masks)
        if self._waits:
            self._finish()

    def load_weights(self, source: str, done: LoadedAddress) -> None:
        """Another oracle, after a while; KV that the old one wrote is wrong to the new one."""
        assert not self._queue, "weights change under a step"

        def finish() -> None:
            if not self._is_closed:
                self.oracle = self.oracle.with_weights(source)
                self.facts = replace(self.facts, model=source)
                done(WeightsLoaded(source))

        self._call_later(LOAD_S, finish)

    def close(self) -> None:
        self._is_closed = True
        self._queue.clear()

    def _start_next(self) -> None:
        plan, _ = self._queue[0]
        self._call_later(self._seconds(plan), self._finish)

    def _seconds(self, plan: StepPlan) -> float:
        if self._step_time is None:
            return 0.0
        num_kv_tokens = int((plan.starts + plan.lengths).sum())
        copying = len(plan.copies) * self.facts.host.block_copy_s if plan.copies else 0.0
        return copying + self._step_time.seconds(plan.num_tokens, num_kv_tokens)

    def _finish(self) -> None:
        if self._is_closed:
            return
        self._waits = not self._masks.is_complete(self._queue[0][0])
        if self._waits:
            return
        plan, done = self._queue.popleft()
        result = self.run(plan)
        if self._queue:
            self._start_next()
        done(result)

    def skip(self, plan: StepPlan) -> None:
        """Take over what a plan changes without running it: what a device does as it fails."""
        self._take_over(plan)
        self._masks.forget(plan)

    def _take_over(self, plan: StepPlan) -> None:
        self._slots.apply(plan)
        if self._sampler is None and (
            self._draws or any(row.adjustments is not None for row in plan.new_rows)
        ):
            from .oracle_sampling import OracleSampler  # which needs torch

            self._sampler = OracleSampler(
                self._slots,
                self.facts.vocab_size,
                draws=self._draws,
                processors=self._processors,
            )
        if self._sampler is not None:
            self._sampler.apply(plan.new_rows)

    def run(self, plan: StepPlan) -> StepDone:
        """Compute a step now: write every row's KV, then let every row attend and sample."""
        if plan.copies is not None:
            self._copy(plan.copies)
        self._take_over(plan)
        self._write(plan)
        prefixes: list[Hashes | None] = []
        failed: list[RowFailed] = []
        ends = plan.starts + plan.lengths
        for row, (slot, end) in enumerate(zip(plan.slots.tolist(), ends.tolist(), strict=True)):
            prefixes.append(self._attend(slot, end))
            if prefixes[-1] is None:
                failed.append(RowFailed(row, f"slot {slot} reads KV that is not its own"))
        masks = self._masks.take(plan)
        rows, positions = sampled_positions(plan)
        slots = plan.slots[rows]
        hashes = [
            None if (hashed := prefixes[row]) is None else int(hashed[position - 1])
            for row, position in zip(rows.tolist(), positions.tolist(), strict=True)
        ]
        allowed = [self._allowed(masks.get(row)) for row in rows.tolist()]
        sampled = [
            -1 if prefix is None else self._sample(slot, position, prefix, mask)
            for slot, position, prefix, mask in zip(
                slots.tolist(), positions.tolist(), hashes, allowed, strict=True
            )
        ]
        if self._sampler is not None:
            self._sampler.sample(self.oracle, slots, positions, hashes, allowed, sampled)
        faults = {} if self._sampler is None else self._sampler.faults
        for row, token_id in zip(rows.tolist(), sampled, strict=True):
            if token_id < 0 and prefixes[row] is not None:
                failed.append(
                    RowFailed(
                        row,
                        _NO_MASKED
                        if row in masks
                        else failure_of(token_id, faults.get(int(plan.slots[row]))),
                    )
                )
        self._slots.record(self._slots.places_of(slots, positions), frozen_ints(sampled))
        token_ids, counts = accept(plan, frozen_ints(np.maximum(sampled, -1)))
        asked = StepLogprobs.of(plan, self._slots)
        told = None
        if asked is not None:
            told = self._tell(plan, asked, token_ids, counts, prefixes)
            failed += asked.failed
        return StepDone(plan.step, token_ids, tuple(failed), counts, told)

    def _tell(
        self,
        plan: StepPlan,
        asked: StepLogprobs,
        token_ids: Ints,
        counts: Ints | None,
        prefixes: list[Hashes | None],
    ) -> Logprobs | None:
        """What the oracle would have said, by the hashes that attention found."""
        places = sampled_tokens(plan)[asked.places]

        def behind(tokens: Longs) -> Floats:
            rows, positions = expand_rows(plan.starts, plan.lengths)
            known = [prefixes[row] for row in rows[tokens].tolist()]
            return np.stack(
                [
                    np.full(self.facts.vocab_size, np.nan, dtype=np.float32)
                    if prefix is None
                    else self.oracle.logits(int(prefix[position]), self.facts.vocab_size)
                    for prefix, position in zip(known, positions[tokens].tolist(), strict=True)
                ]
            )

        raw = behind(places) if len(places) else np.zeros((0, 0), dtype=np.float32)
        return asked.tell(raw, token_ids, counts, behind)

    def _copy(self, copies: Copies) -> None:
        """Move whole blocks, first to host memory and then from it."""
        size = self.facts.block_size
        for kv, host in (
            (self._kv_tokens.reshape(-1, size), self._host_tokens),
            (self._kv_hashes.reshape(-1, size), self._host_hashes),
        ):
            host[copies.out_hosts] = kv[copies.out_blocks]
            kv[copies.in_blocks] = host[copies.in_hosts]

    def _write(self, plan: StepPlan) -> None:
        """In planning order: a row may build on blocks that an earlier row of the step writes."""
        for slot, start, length in zip(
            plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist(), strict=True
        ):
            places = self._places(slot, start, start + length)
            token_ids = self._slots.tokens[slot, start : start + length]
            before = (
                self.oracle.empty
                if start == 0
                else int(self._kv_hashes[self._places(slot, start - 1, start)][0])
            )
            self._kv_tokens[places] = token_ids
            self._kv_hashes[places] = self.oracle.extend(before, token_ids.tolist())

    def _attend(self, slot: int, end: int) -> Hashes | None:
        """The hash at each position of [0, end), or None if KV memory does not hold that prefix."""
        places = self._places(slot, 0, end)
        token_ids, hashes = self._kv_tokens[places], self._kv_hashes[places]
        is_own = np.array_equal(token_ids, self._slots.tokens[slot, :end])
        is_right = is_own and is_chain(self.oracle.empty, token_ids, hashes)
        return hashes if is_right else None

    def _places(self, slot: int, start: int, end: int) -> NDArray[np.int64]:
        """Where positions [start, end) of a slot lie in KV memory."""
        size = self.facts.block_size
        positions = np.arange(start, end, dtype=np.int64)
        blocks = self._slots.block_table[slot, positions // size].astype(np.int64)
        places: NDArray[np.int64] = blocks * size + positions % size
        return places

    def _allowed(self, mask: Ints | None) -> Bools | None:
        return None if mask is None else allowed_tokens(mask, self.facts.vocab_size)

    def _sample(self, slot: int, position: int, prefix: int, mask: Bools | None) -> int:
        banned = self._slots.banned_ids[slot] if position < self._slots.min_end[slot] else ()
        allowed = None if mask is None else frozenset(mask.nonzero()[0].tolist())
        return self.oracle.next_token(prefix, banned=banned, allowed=allowed)
