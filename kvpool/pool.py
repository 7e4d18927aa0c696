"""BlockPool: who gets which blocks of KV, as the Scheduler asks. Pure: no awaits, no clock, no
tensors.

Rules 2, 7, 9 to 11 and 15 to 18 of docs/rules.md.
"""

from collections.abc import Sequence

import numpy as np

from ..messages import (
    NO_INTS,
    NO_LONGS,
    AdmitSequence,
    BlocksReserved,
    BlocksSettled,
    ForgetPrefixes,
    ForgetUnused,
    Grant,
    PinPrefix,
    PrefixAccount,
    PrefixEnd,
    PublishBlocks,
    ReleaseBlocks,
    ReserveBlocks,
    SequenceAdmitted,
    UnpinPrefix,
    UnpublishBlocks,
    frozen_ints,
    seal,
)
from .cuts import plan_cuts
from .host import HostTier
from .places import BlockPlaces
from .tails import Tails


class BlockPool(BlockPlaces):
    """Decides who gets blocks, and answers what is asked.

    `num_blocks` blocks of `block_size` positions; one block table per slot. `watermark` blocks
    stay free when a sequence is admitted beside others. With a `host` tier, what victims lose is
    saved there where that pays. Without `explains` nobody may ask for the account of a prefix,
    and nothing is kept for one.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        *,
        watermark: int = 0,
        host: HostTier | None = None,
        explains: bool = True,
    ) -> None:
        super().__init__(num_blocks, block_size, num_slots, host=host, explains=explains)
        self._watermark = watermark
        self._all_full = seal(np.full(num_slots, Grant.FULL, dtype=np.int32))  # lent in answers

    # What the Scheduler asks

    def reserve(self, ask: ReserveBlocks) -> BlocksReserved:
        """Grow running sequences, in the order of importance; later ones may have to give way."""
        if ask.full is not None:
            self._publish(ask.full)
        self._settle(ask.done)
        total = int(np.add.reduce(ask.wanted))
        if total > len(self._free):
            return self._reserve_scarce(ask)
        tables, slots = self._tables, ask.slots.tolist()
        blocks = self._holders.hold(self._cache.take(total))
        if total == len(slots):  # one block for each
            for slot, block in zip(slots, blocks, strict=True):
                tables[slot].append(block)
        else:
            start = 0
            for slot, wanted in zip(slots, ask.wanted.tolist(), strict=True):
                tables[slot] += blocks[start : start + wanted]
                start += wanted
        return BlocksReserved(
            self._all_full[: len(slots)],
            ask.wanted,
            seal(np.array(blocks, dtype=np.int32)),
            NO_LONGS,
            NO_INTS,
            NO_INTS,
            self.num_free,
            self.next_fence,
        )

    def _reserve_scarce(self, ask: ReserveBlocks) -> BlocksReserved:
        victims = list(zip(ask.victims.tolist(), ask.victim_ranks.tolist(), strict=True))
        tails = Tails(ask)
        outcomes: list[int] = []
        granted: list[int] = []
        blocks: list[int] = []
        claimed = 0  # due blocks that more important demands of this message wait for
        columns = (ask.slots.tolist(), ask.wanted.tolist(), ask.ranks.tolist())
        for slot, wanted, rank in zip(*columns, strict=True):
            if slot in tails.kept:
                outcomes.append(Grant.REFUSED)
                granted.append(0)
                continue
            lacking = wanted + claimed - self.num_free - self.num_due
            if lacking > 0:
                later = [victim for victim, victim_rank in victims if victim_rank > rank]
                cuts, _ = plan_cuts(later, self._tables, self._refs, lacking)
                self._cut(cuts, tails)
            count = min(wanted, len(self._free))
            claimed += min(wanted - count, self.num_due - claimed)
            blocks += self._append(slot, count)
            granted.append(count)
            outcomes.append(self._outcome(wanted, count))
        return BlocksReserved(
            frozen_ints(outcomes),
            frozen_ints(granted),
            frozen_ints(blocks),
            *tails.columns(),
            self.num_free,
            self.next_fence,
            tails.copies(),
        )

    def admit(self, ask: AdmitSequence) -> SequenceAdmitted:
        """Match a waiting sequence's prefix and reserve its first chunk, or change nothing for it.

        Blocks that it still holds stay, unless more than those is found.
        """
        self._settle(ask.done)
        table, known = self._tables[ask.slot], self._match(ask)
        match = known if ask.most_found is None else known[: ask.most_found // self.block_size]
        found, spare = self._beyond(table, match, ask.held_tokens)
        num_tokens, num_there = len(ask.token_ids), len(table) - len(spare) + len(found)
        need = max(self.blocks_for(num_tokens) - num_there, 0)
        is_idle = ask.is_alone and not self._due  # then there is nobody to disturb
        margin = 0 if is_idle else ask.promised + self._watermark
        tails = Tails(ask)
        self._make_room(ask, found, need + margin - len(spare), tails)
        free, due = self._left_after(found)
        free += len(spare)
        if free < need + margin:
            outcome = Grant.LATER if free + due >= need + margin else Grant.REFUSED
            return self._admitted(outcome, tails)
        account = None
        if ask.is_explained:  # before anything is evicted for this very sequence
            account = self._cache.account(ask.root, ask.token_ids, known)
            if len(match) < len(known):
                account = PrefixAccount(PrefixEnd.COMPUTED)
        if spare:
            self._holders.drop(table, len(table) - len(spare), ask.done)
            self._settle(ask.done)
        for block in self._holders.refer(found):
            self._free.take(block)
        table += found
        self._roots[ask.slot] = ask.root
        start = num_there * self.block_size if found else ask.held_tokens
        if self.host is not None:
            start = max(start, self.host.end_of(ask.slot) * self.block_size)
        chunk_end = min(start + ask.chunk, num_tokens)
        self._append(ask.slot, max(self.blocks_for(chunk_end) - len(table), 0))
        if self.host is not None:
            hosts = self.host.load(ask.slot, num_there, ask.posted + 1)
            tails.load(hosts, table[num_there:][: len(hosts)])
        return self._admitted(Grant.FULL, tails, start, len(found), table, account)

    def _beyond(
        self, table: list[int], match: list[int], held_tokens: int
    ) -> tuple[list[int], list[int]]:
        """Found blocks that take a sequence further than those it holds, and blocks of its own
        that it can then spare: the last ones, where they are not full."""
        num_full = held_tokens // self.block_size
        is_more = len(match) * self.block_size > held_tokens
        return (match[num_full:], table[num_full:]) if is_more else ([], [])

    def _admitted(
        self,
        outcome: Grant,
        tails: Tails,
        cached_tokens: int = 0,
        num_found: int = 0,
        table: Sequence[int] = (),
        account: PrefixAccount | None = None,
    ) -> SequenceAdmitted:
        return SequenceAdmitted(
            outcome,
            cached_tokens,
            num_found,
            frozen_ints(table),
            *tails.columns(),
            self.num_free,
            self.next_fence,
            account,
            tails.copies(),
        )

    def publish(self, ask: PublishBlocks) -> BlocksSettled:
        """Make full blocks findable; the step that writes them commits them."""
        self._publish(ask.full)
        self._settle(ask.done)
        return BlocksSettled(self.num_free, self.next_fence)

    def release(self, ask: ReleaseBlocks) -> BlocksSettled:
        """Let go of everything these slots hold, as soon as no step mentions it."""
        for slot, fence in zip(ask.slots.tolist(), ask.fences.tolist(), strict=True):
            self._release(slot, fence)
        self._settle(ask.done)
        return BlocksSettled(self.num_free, self.next_fence)

    def unpublish(self, ask: UnpublishBlocks) -> BlocksSettled:
        """Steps failed: what no completed step has written stops being findable."""
        self._cache.forget_uncommitted(ask.done)
        self._settle(ask.done)
        return BlocksSettled(self.num_free, self.next_fence)

    def forget_unused(self, ask: ForgetUnused) -> BlocksSettled:
        """Time has passed: what nobody has used for too long is not found any more."""
        self._free.now_ns = ask.now_ns  # before anything is given back
        self._settle(ask.done)
        self._cache.forget_unused(ask.unused_since_ns)
        return BlocksSettled(self.num_free, self.next_fence)

    def forget_prefixes(self, ask: ForgetPrefixes) -> BlocksSettled:
        """Nothing cached is true any more: as `reset_cache`, in the order of the Scheduler."""
        self._settle(ask.done)
        self.reset_cache()
        return BlocksSettled(self.num_free, self.next_fence)

    # What the API asks

    def reset_cache(self) -> None:
        """Forget all cached content; running sequences keep their blocks."""
        self._cache.forget_all()

    def pin(self, ask: PinPrefix) -> None:
        """Give these tokens' full blocks away last, those included that are not cached yet."""
        self._cache.pin(ask)

    def unpin(self, ask: UnpinPrefix, now_ns: int) -> None:
        """The content is cached like any other again, as if it had been used just now."""
        self._cache.unpin(ask.pin, now_ns)

    # Decisions

    def _outcome(self, wanted: int, count: int) -> Grant:
        if count == wanted:
            return Grant.FULL
        if count:
            return Grant.PART
        return Grant.LATER if self.num_due else Grant.REFUSED

    def _match(self, ask: AdmitSequence) -> list[int]:
        """Found blocks, the first of its prefix."""
        return self._cache.match(ask.root, ask.token_ids)

    def _make_room(self, ask: AdmitSequence, found: list[int], need: int, tails: Tails) -> None:
        """Cut tails of victims, but only if together they suffice."""
        lacking = need - sum(self._left_after(found))
        if lacking <= 0:
            return
        victims = ask.victims.tolist()
        cuts, gained = plan_cuts(victims, self._tables, self._refs, lacking, set(found))
        if gained >= lacking:
            self._cut(cuts, tails)
