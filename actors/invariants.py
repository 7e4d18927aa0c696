"""The invariants of the cores, asserted while an engine runs: slow, and for finding faults."""

import numpy as np

from ..kvpool import BlockPool
from ..messages import BlocksReserved, Message, ReleaseBlocks, ReserveBlocks, StepPlan
from .batching import Batcher
from .journal import Turn


class Invariants:
    """The pool is right between any two messages; the ledger, when a turn of the Scheduler ends:
    within the turn it may lie between two states."""

    def __init__(self, batcher: Batcher, pool: BlockPool) -> None:
        self._batcher = batcher
        self._pool = pool
        self._touched = _TouchedBlocks(pool.block_size)
        self._asked: Message | None = None
        self._released: tuple[int, ...] = ()  # the one block table that is about to be let go of

    def hear(self, actor: str, turn: Turn[Message]) -> None:
        """A sink: an actor took messages, and has not applied them yet."""
        if actor == "kvpool":
            self._asked = message = turn.envelopes[0].message
            if isinstance(message, ReleaseBlocks) and len(message.slots) == 1:
                self._released = self._pool.table(int(message.slots[0]))
        elif actor == "scheduler":
            message = turn.envelopes[0].message
            if isinstance(message, BlocksReserved) and isinstance(self._asked, ReserveBlocks):
                self._check_victims(self._asked, message)
            self._check_order_of_reuse()
        else:
            return  # nobody else changes the pool
        self._pool.check()

    def check_turn(self) -> None:
        """A turn of the Scheduler has ended."""
        batcher, steps = self._batcher, self._batcher.steps
        self._pool.check()
        batcher.check()
        for plan in steps:
            for block in self._touched.by(plan):
                assert not self._pool.is_free(block), "a step in flight touches a free block"
            self._check_copies(plan)
        self._touched.forget_until(steps.done)
        is_held = batcher.is_paused or batcher.weights.is_awaited or batcher.is_compiling
        is_stuck = not batcher.is_empty and not is_held and not len(steps)
        assert not is_stuck, "there is work, no step is in flight, and none was planned"

    def _check_copies(self, plan: StepPlan) -> None:
        """The same of blocks in host memory."""
        host = self._pool.host
        if host is not None and plan.copies is not None:
            touched = {*plan.copies.out_hosts.tolist(), *plan.copies.in_hosts.tolist()}
            assert touched.isdisjoint(host.free), "a copy in flight touches a free host block"

    def _check_victims(self, ask: ReserveBlocks, answer: BlocksReserved) -> None:
        """Who gave way gave no more than the demands of that message can use (rule 9)."""
        if not len(answer.preempted):
            return
        stays = ~np.isin(ask.slots, answer.preempted)
        unmet = int((ask.wanted - answer.granted)[stays].sum())
        assert self._num_unheld() <= unmet, "somebody gave a block away for nothing"

    def _num_unheld(self) -> int:
        return self._pool.num_blocks - len(self._pool.referred)

    def _check_order_of_reuse(self) -> None:
        """Of one prefix the tail is given away before the head, or it would be lost with it."""
        if self._released:
            places = {block: place for place, block in enumerate(self._pool.due)}
            order = [places[block] for block in self._released if block in places]
            assert order == sorted(order, reverse=True), "a prefix is given away from its head"
            self._released = ()


class _TouchedBlocks:
    """Which blocks each step in flight reads or writes, as its device sees it: an early release
    would not show in what a device says that runs in order (rule 29)."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._tables: dict[int, list[int]] = {}
        self._by_step: dict[int, set[int]] = {}

    def by(self, plan: StepPlan) -> set[int]:
        if plan.step not in self._by_step:
            self._apply(plan)
            ends = (plan.starts + plan.lengths).tolist()
            copied = [] if plan.copies is None else [plan.copies.out_blocks, plan.copies.in_blocks]
            self._by_step[plan.step] = {block for column in copied for block in column.tolist()} | {
                block
                for slot, end in zip(plan.slots.tolist(), ends, strict=True)
                for block in self._tables[slot][: -(-end // self._block_size)]
            }
        return self._by_step[plan.step]

    def forget_until(self, done: int) -> None:
        for step in [step for step in self._by_step if step <= done]:
            del self._by_step[step]

    def _apply(self, plan: StepPlan) -> None:
        for row in plan.new_rows:
            self._tables[row.slot] = row.block_ids.tolist()
        columns = (plan.block_slots.tolist(), plan.block_indices.tolist(), plan.block_ids.tolist())
        for slot, index, block in zip(*columns, strict=True):
            table = self._tables[slot]
            assert len(table) >= index, "an appended block does not follow the last one"
            table[index:] = [block]  # one that was given early may have been taken back
