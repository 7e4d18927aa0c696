"""The KVPool actor: the block pool behind a mailbox, asked by the Scheduler in its own turn.

A question first drains the mailbox, so that what arrived before it is applied before it (rule 1).
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from ..kvpool import BlockPool
from ..messages import (
    AdmitSequence,
    BlocksReserved,
    BlocksSettled,
    PublishBlocks,
    ReleaseBlocks,
    ReserveBlocks,
    ResetPrefixCache,
    SequenceAdmitted,
    UnpublishBlocks,
)
from .actor import Actor, Mailbox
from .journal import Journal, Turn

PoolQuestion: TypeAlias = (
    ReserveBlocks | AdmitSequence | PublishBlocks | ReleaseBlocks | UnpublishBlocks
)
PoolAnswer: TypeAlias = BlocksReserved | SequenceAdmitted | BlocksSettled

Ask = TypeVar("Ask", bound=PoolQuestion)
Answer = TypeVar("Answer", bound=PoolAnswer)


class KVPool(Actor[ResetPrefixCache]):
    """Owns the block pool; its questions and answers are numbered like every other message."""

    def __init__(
        self, mailbox: Mailbox[ResetPrefixCache], journal: Journal, pool: BlockPool
    ) -> None:
        super().__init__(mailbox)
        self._journal = journal
        self._pool = pool

    def react(self, turn: Turn[ResetPrefixCache]) -> None:
        for _ in turn.envelopes:
            self._pool.reset_cache()

    def reserve(self, ask: ReserveBlocks) -> BlocksReserved:
        return self._answer(self._pool.reserve, ask)

    def admit(self, ask: AdmitSequence) -> SequenceAdmitted:
        return self._answer(self._pool.admit, ask)

    def publish(self, ask: PublishBlocks) -> BlocksSettled:
        return self._answer(self._pool.publish, ask)

    def release(self, ask: ReleaseBlocks) -> BlocksSettled:
        return self._answer(self._pool.release, ask)

    def unpublish(self, ask: UnpublishBlocks) -> BlocksSettled:
        return self._answer(self._pool.unpublish, ask)

    def _answer(self, apply: Callable[[Ask], Answer], ask: Ask) -> Answer:
        arrived = self._mailbox.drain()
        if arrived is not None:
            self.react(arrived)
        self._journal.note("kvpool", ask)
        answer = apply(ask)
        self._journal.note("scheduler", answer)
        return answer
