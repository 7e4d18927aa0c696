"""The Scheduler's side of the conversation about blocks: every question of one turn."""

from typing import Protocol, TypeAlias

import numpy as np

from ...messages import (
    NO_INTS,
    NO_LONGS,
    AdmitSequence,
    BlocksReserved,
    BlocksSettled,
    ForgetPrefixes,
    ForgetUnused,
    FullBlocks,
    Ints,
    Longs,
    PublishBlocks,
    ReleaseBlocks,
    ReserveBlocks,
    SequenceAdmitted,
    UnpublishBlocks,
    frozen_longs,
    seal,
)
from .ledger import Ledger
from .steps import StepsInFlight
from .victims import Victims


class PoolPort(Protocol):
    """A BlockPool, or the KVPool actor in front of it; it answers in the same turn (rule 1)."""

    def reserve(self, ask: ReserveBlocks) -> BlocksReserved: ...

    def admit(self, ask: AdmitSequence) -> SequenceAdmitted: ...

    def publish(self, ask: PublishBlocks) -> BlocksSettled: ...

    def release(self, ask: ReleaseBlocks) -> BlocksSettled: ...

    def unpublish(self, ask: UnpublishBlocks) -> BlocksSettled: ...

    def forget_unused(self, ask: ForgetUnused) -> BlocksSettled: ...

    def forget_prefixes(self, ask: ForgetPrefixes) -> BlocksSettled: ...


PoolState: TypeAlias = BlocksReserved | SequenceAdmitted | BlocksSettled


class BlockClient:
    """Stamps every question with the steps posted and done, and batches releases."""

    def __init__(
        self,
        pool: PoolPort,
        steps: StepsInFlight,
        ledger: Ledger,
        victims: Victims,
        *,
        has_host_memory: bool,
    ) -> None:
        self._pool = pool
        self._steps = steps
        self._ledger = ledger
        self._victims = victims
        self._has_host_memory = has_host_memory
        self._released: list[int] = []  # slots the pool has not been told of yet
        self._next_fence: int | None = None
        self.num_free = 0  # what the pool said last; only our own questions can lower it

    def release(self, slot: int) -> None:
        """The slot's blocks are let go of; the pool hears it with `tell`."""
        self._released.append(slot)

    def tell(self) -> None:
        """Tell the pool what was released and, where it waits for one, which steps are done."""
        is_awaited = self._next_fence is not None and self._next_fence <= self._steps.done
        if self._released or is_awaited:
            slots = frozen_longs(self._released)
            self._released.clear()
            answer = self._pool.release(
                ReleaseBlocks(self._steps.posted, self._steps.done, slots, self._fences(slots))
            )
            self._heard(answer)

    def reserve(
        self, full: FullBlocks | None, slots: Longs, wanted: Ints, ranks: Longs, order: Longs
    ) -> BlocksReserved:
        """Grow rows at these ranks of `order`; later ones, and those that wait, may give way. What
        is `full` is published with it."""
        victims = victim_ranks = NO_LONGS
        if np.add.reduce(wanted) > self.num_free:
            victims, victim_ranks = self._victims.of_growth(order, int(ranks[0]))
        answer = self._pool.reserve(
            ReserveBlocks(
                self._steps.posted,
                self._steps.done,
                full,
                seal(slots),
                seal(wanted),
                seal(ranks),
                victims,
                victim_ranks,
                self._fences(victims),
                self._savable(victims),
            )
        )
        self._heard(answer)
        return answer

    def admit(
        self,
        serial: int,
        slot: int,
        token_ids: Ints,
        root: bytes,
        *,
        chunk: int,
        held_tokens: int,
        is_alone: bool,
        is_explained: bool,
        promised: int,
        victims: Longs,
        most_found: int | None = None,
    ) -> SequenceAdmitted:
        """Ask for a waiting sequence's prefix and first chunk."""
        steps, fences = self._steps, self._fences(victims)
        answer = self._pool.admit(
            AdmitSequence(
                steps.posted,
                steps.done,
                serial,
                slot,
                token_ids,
                root,
                chunk,
                held_tokens,
                is_alone,
                is_explained,
                promised,
                victims,
                fences,
                self._savable(victims),
                most_found,
            )
        )
        self._heard(answer)
        return answer

    def publish(self, full: FullBlocks) -> None:
        """Make full blocks findable."""
        self._heard(self._pool.publish(PublishBlocks(self._steps.posted, self._steps.done, full)))

    def unpublish(self) -> None:
        """A step failed, and has not been counted as done yet."""
        answer = self._pool.unpublish(UnpublishBlocks(self._steps.posted, self._steps.done))
        self._heard(answer)

    def forget_unused(self, now_ns: int, unused_since_ns: int) -> None:
        """Cached content that nobody has used since then is not found any more."""
        steps = self._steps
        ask = ForgetUnused(steps.posted, steps.done, now_ns, unused_since_ns)
        self._heard(self._pool.forget_unused(ask))

    def forget_prefixes(self) -> None:
        """Nothing that is cached will be true any more."""
        ask = ForgetPrefixes(self._steps.posted, self._steps.done)
        self._heard(self._pool.forget_prefixes(ask))

    def _heard(self, answer: PoolState) -> None:
        self.num_free = answer.num_free
        self._next_fence = answer.next_fence

    def _fences(self, slots: Longs) -> Longs:
        return seal(self._ledger.last_step[slots]) if len(slots) else NO_LONGS

    def _savable(self, slots: Longs) -> Ints:
        """How much KV of each could be copied to host memory, if there were any."""
        return seal(self._ledger.reach(slots)) if self._has_host_memory else NO_INTS
