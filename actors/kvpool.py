"""The KVPool actor: the block pool behind a mailbox, asked by the Scheduler in its own turn.

A question first drains the mailbox, so that what arrived before it is applied before it (rule 1).
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar, assert_never

from ..kvpool import BlockPool
from ..messages import (
    AdmitSequence,
    BlocksReserved,
    BlocksSettled,
    ForgetPrefixes,
    ForgetUnused,
    PinPrefix,
    PublishBlocks,
    ReleaseBlocks,
    ReserveBlocks,
    ResetPrefixCache,
    SequenceAdmitted,
    UnpinPrefix,
    UnpublishBlocks,
)
from .actor import Actor, Mailbox
from .journal import Journal, Turn

CacheControl: TypeAlias = ResetPrefixCache | PinPrefix | UnpinPrefix
PoolQuestion: TypeAlias = (
    ReserveBlocks
    | AdmitSequence
    | PublishBlocks
    | ReleaseBlocks
    | UnpublishBlocks
    | ForgetUnused
    | ForgetPrefixes
)
PoolAnswer: TypeAlias = BlocksReserved | SequenceAdmitted | BlocksSettled

Ask = TypeVar("Ask", bound=PoolQuestion)
Answer = TypeVar("Answer", bound=PoolAnswer)


class KVPool(Actor[CacheControl]):
    """Owns the block pool; its questions and answers are numbered like every other message."""

    def __init__(self, mailbox: Mailbox[CacheControl], journal: Journal, pool: BlockPool) -> None:
        super().__init__(mailbox)
        self._journal = journal
        self._pool = pool

    def react(self, turn: Turn[CacheControl]) -> None:
        for envelope in turn.envelopes:
            self._apply(envelope.message, turn.t_ns)

    def _apply(self, message: CacheControl, now_ns: int) -> None:
        match message:
            case ResetPrefixCache():
                self._pool.reset_cache()
            case PinPrefix():
                self._pool.pin(message)
            case UnpinPrefix():
                self._pool.unpin(message, now_ns)
            case _:
                assert_never(message)

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

    def forget_unused(self, ask: ForgetUnused) -> BlocksSettled:
        return self._answer(self._pool.forget_unused, ask)

    def forget_prefixes(self, ask: ForgetPrefixes) -> BlocksSettled:
        return self._answer(self._pool.forget_prefixes, ask)

    def _answer(self, apply: Callable[[Ask], Answer], ask: Ask) -> Answer:
        arrived = self._mailbox.drain()
        if arrived is not None:
            self.react(arrived)
        self._journal.note("kvpool", ask)
        answer = apply(ask)
        self._journal.note("scheduler", answer)
        return answer
