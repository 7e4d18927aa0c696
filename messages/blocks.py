"""The conversation about KV blocks between Scheduler and KVPool.

Each message says which steps are posted and done, because a block that a step in flight mentions
is not free before that step is done. Every question is answered in the turn it was asked.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from .arrays import Ints, Longs
from .steps import Copies


class Grant(IntEnum):
    """What became of a demand."""

    REFUSED = 0  # nothing, and nobody may give way for it
    LATER = 1  # enough blocks are due; nothing is held, ask again next step
    PART = 2  # some of the blocks
    FULL = 3


class PrefixEnd(StrEnum):
    """Why a prompt's prefix was found no further."""

    WHOLE = "whole"  # every full block before its last token was found
    SHORT = "short"  # it has no full block before its last token
    NEW = "new"  # what comes next was never cached, as far as is remembered
    EVICTED = "evicted"  # it was cached, and its block was needed for something else
    EXPIRED = "expired"  # it was cached, and nobody used it for as long as content is kept
    RESET = "reset"  # it was cached, and the cache was reset
    COMPUTED = "computed"  # it is cached, and computed again for the sake of prompt logprobs
    FAILED = "failed"  # it was cached, and the step that was to write it failed


@dataclass(frozen=True, slots=True)
class PrefixAccount:
    """Why a prompt's prefix was found no further, as far as its own salt and adapter know."""

    end: PrefixEnd
    first_difference: int | None = None
    """With NEW: the position of the first token that differs from the closest known continuation
    of what was found; None where nothing known continues it."""


@dataclass(frozen=True, slots=True, eq=False)
class FullBlocks:
    """Blocks whose tokens are confirmed and whose writer is posted: a row of them for each slot,
    in parallel columns."""

    step: int  # the step whose completion commits them
    slots: Longs
    firsts: Ints  # the place of each row's first block in the slot's block table
    counts: Ints  # blocks of each row
    token_ids: Ints  # [blocks * block_size] what all of them hold


@dataclass(frozen=True, slots=True, eq=False)
class ReserveBlocks:
    """Running sequences want to grow; what they filled becomes findable with it.

    Demands are parallel and in the order of importance; victims, running or waiting, are parallel,
    the least important first. A rank is a place in the order of those that run, and a victim
    serves only demands of lower rank. Who waits ranks behind everybody: its blocks serve any
    demand, though not before those of less important victims.
    """

    posted: int
    done: int
    full: FullBlocks | None
    slots: Longs
    wanted: Ints  # blocks
    ranks: Longs
    victims: Longs  # slots
    victim_ranks: Longs
    fences: Longs  # the last step that mentions each victim
    victim_tokens: Ints  # positions whose KV could be saved; empty without host memory


@dataclass(frozen=True, slots=True, eq=False)
class BlocksReserved:
    """The answer to ReserveBlocks, parallel to its demands."""

    outcomes: Ints  # Grant
    granted: Ints  # blocks, counted
    block_ids: Ints  # all granted blocks, in demand order
    preempted: Longs  # slots that gave way, each the tail of its blocks
    kept: Ints  # blocks that each of them still holds
    saved: Ints  # blocks of each that the next step copies to host memory
    num_free: int  # blocks that can be given out now
    next_fence: int | None  # the earliest step whose completion frees something
    copies: Copies | None = None  # for the next step


@dataclass(frozen=True, slots=True, eq=False)
class AdmitSequence:
    """A waiting sequence asks to run: match its prefix and reserve its first chunk.

    Who gave up only a tail still holds blocks, for the first `held_tokens` positions.
    """

    posted: int
    done: int
    serial: int  # whose sequence it is, for who reads the log
    slot: int
    token_ids: Ints  # the confirmed tokens
    root: bytes  # what stands before the first block: only sequences of one root share blocks
    chunk: int  # tokens it may compute in its first step, beyond the prefix found
    held_tokens: int  # positions whose KV is in blocks that the slot holds
    is_alone: bool  # nobody runs
    is_explained: bool  # whether the account of its prefix is wanted
    promised: int  # blocks that admitted prefills will still need
    victims: Longs  # slots, the least important first: of lower class, or later and waiting
    fences: Longs  # the last step that mentions each victim
    victim_tokens: Ints  # positions whose KV could be saved; empty without host memory
    most_found: int | None = None  # tokens it may take from the cache; None: all


@dataclass(frozen=True, slots=True, eq=False)
class SequenceAdmitted:
    """The answer to AdmitSequence; with REFUSED or LATER the slot holds what it held before."""

    outcome: Grant
    cached_tokens: int  # positions whose KV is there: held, found, or copied from host memory
    num_found: int  # blocks that were found behind those it held
    block_ids: Ints  # the block table: held and found blocks first, then new ones
    preempted: Longs
    kept: Ints  # blocks that each of them still holds
    saved: Ints  # blocks of each that the next step copies to host memory
    num_free: int
    next_fence: int | None
    account: PrefixAccount | None = None  # with FULL, where it was wanted
    copies: Copies | None = None  # for the next step


@dataclass(frozen=True, slots=True, eq=False)
class PublishBlocks:
    """Full blocks become findable."""

    posted: int
    done: int
    full: FullBlocks


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseBlocks:
    """Sequences that ended let go of all their blocks; without slots it only tells the steps."""

    posted: int
    done: int
    slots: Longs
    fences: Longs  # the last step that mentions each slot


@dataclass(frozen=True, slots=True, eq=False)
class BlocksSettled:
    """The answer to ReleaseBlocks and PublishBlocks."""

    num_free: int
    next_fence: int | None


@dataclass(frozen=True, slots=True, eq=False)
class UnpublishBlocks:
    """Steps failed: blocks that no completed step has written stop being findable."""

    posted: int
    done: int


@dataclass(frozen=True, slots=True, eq=False)
class ForgetUnused:
    """Time has passed: cached content that nobody has used since a moment is to be forgotten."""

    posted: int
    done: int
    now_ns: int  # until the next such message this is the time at which content is used
    unused_since_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class ForgetPrefixes:
    """The device is to get other weights: nothing that is cached will be true any more."""

    posted: int
    done: int


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Forget every cached block; sequences that run keep theirs: API → KVPool."""


@dataclass(frozen=True, slots=True, eq=False)
class PinPrefix:
    """Keep this content findable while there is anything else to give away: API → KVPool."""

    pin: int  # never reused
    root: bytes
    token_ids: Ints  # of which full blocks are kept


@dataclass(frozen=True, slots=True)
class UnpinPrefix:
    """The content is cached like any other again; an unknown pin is a no-op: API → KVPool."""

    pin: int
