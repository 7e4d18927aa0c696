"""What an actor is: private state behind a mailbox, run by a task of its own."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskStatus

from .journal import Envelope, Journal, Turn

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)

Address: TypeAlias = Callable[[M_contra], None]
"""Where to post: a mailbox's `post`, or in a test a list's `append`."""


class Mailbox(Generic[M]):
    """A queue with one reader.

    Posting never waits, so actors that talk in circles cannot deadlock. The engine stays bounded
    because Intake admits a bounded number of requests and few steps are in flight.
    """

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self._arrived: list[Envelope[M]] = []
        self._waiter: asyncio.Future[None] | None = None  # of the reader, while it waits

    def post(self, message: M) -> None:
        self._arrived.append(self._journal.stamp(message))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_empty(self) -> bool:
        """Whether its reader has taken all that has arrived."""
        return not self._arrived

    async def receive(self) -> Turn[M]:
        """Wait for a message, then take every message that has arrived."""
        while not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    def drain(self) -> Turn[M] | None:
        """Take every message that has arrived, without waiting."""
        return self._take() if self._arrived else None

    def fail(self, error: Exception) -> None:
        """The reader failed."""
        self._journal.fail(self._name, error)

    def _take(self) -> Turn[M]:
        envelopes, self._arrived = self._arrived, []
        return self._journal.begin_turn(self._name, envelopes)


class Actor(ABC, Generic[M]):
    """Private state that only its own task touches; a turn is one synchronous `react`."""

    def __init__(self, mailbox: Mailbox[M]) -> None:
        self._mailbox = mailbox

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """React to everything that arrives, until cancelled."""
        try:
            task_status.started()
            while True:
                await self.attend()
        except Exception as error:
            self._mailbox.fail(error)
            raise
        finally:
            self.stop()

    async def attend(self) -> None:
        """Wait for what arrives, and take it as one turn."""
        self.react(await self._mailbox.receive())

    @abstractmethod
    def react(self, turn: Turn[M]) -> None:
        """Apply everything that arrived, then act once."""

    def stop(self) -> None:
        """Let go of what the actor owns. Every exit runs it, so it neither waits nor fails."""
