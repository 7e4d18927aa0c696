"""The cores: Scheduler and KVPool with the Batcher and the BlockPool inside.

What they do depends on their setup and on the messages they take, turn by turn, and on nothing
else. So a recording of both determines every plan, and a replay builds the same cores again.
"""

from dataclasses import dataclass

from ..kvpool import BlockPool, HostTier, SwapCosts
from ..messages import LoadWeights, SampleRows, StepPlan, TokensReady
from .actor import Address, Mailbox
from .batching import Batcher, BatchLimits, Drafter, Grammars
from .invariants import Invariants
from .journal import Journal
from .kvpool import CacheControl, KVPool
from .opening import Opening
from .scheduler import CallAt, Scheduler, SchedulerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSetup:
    """Everything, beside messages, that the cores depend on."""

    limits: BatchLimits
    watermark: int  # blocks kept free when a sequence is admitted beside others
    is_checked: bool = False  # whether the invariants are asserted after every message


@dataclass(frozen=True, slots=True)
class Cores:
    """The two actors, what is inside them, and where to post."""

    pool: BlockPool
    batcher: Batcher
    kvpool: KVPool
    scheduler: Scheduler
    to_pool: Mailbox[CacheControl]
    to_scheduler: Mailbox[SchedulerMessage]
    journal: Journal

    def opening(self, t_ns: int) -> Opening:
        """How things stand between two turns of the Scheduler."""
        return Opening(t_ns, self.journal.last_seq, *self.batcher.owners)


def build_pool(limits: BatchLimits, watermark: int) -> BlockPool:
    """A new pool, with a tier in host memory where the limits have one."""
    host = None
    if limits.num_host_blocks:
        costs = SwapCosts(limits.block_copy_s, limits.token_s)
        host = HostTier(limits.num_host_blocks, limits.block_size, costs)
    return BlockPool(
        limits.num_blocks,
        limits.block_size,
        limits.num_slots,
        watermark=watermark,
        host=host,
        explains=limits.prefix_caching and limits.explains_prefixes,
    )


def build_cores(
    setup: CoreSetup,
    journal: Journal,
    *,
    executor: Address[StepPlan | LoadWeights],
    detokenizer: Address[TokensReady],
    call_at: CallAt,
    masks: Address[SampleRows] | None = None,
    drafter: Drafter | None = None,
    grammars: Grammars | None = None,
) -> Cores:
    """New cores that have seen nothing yet; drafter and grammars are pure functions."""
    limits = setup.limits
    to_pool: Mailbox[CacheControl] = Mailbox("kvpool", journal)
    to_scheduler: Mailbox[SchedulerMessage] = Mailbox("scheduler", journal)
    pool = build_pool(limits, setup.watermark)
    kvpool = KVPool(to_pool, journal, pool)
    batcher = Batcher(limits, kvpool, drafter=drafter, grammars=grammars)
    invariants = Invariants(batcher, pool) if setup.is_checked else None
    if invariants is not None:
        journal.attach(invariants.hear)
    scheduler = Scheduler(
        to_scheduler,
        batcher,
        executor=executor,
        detokenizer=detokenizer,
        call_at=call_at,
        weights=executor,
        masks=masks,
        after_turn=None if invariants is None else invariants.check_turn,
    )
    return Cores(pool, batcher, kvpool, scheduler, to_pool, to_scheduler, journal)
