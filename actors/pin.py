"""Pin: a caller's hold on a cached prefix."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ..messages import UnpinPrefix
from .actor import Address


class Pin:
    """A prefix that stays findable while there is anything else to give away.

    It ends with `unpin`, with its time to live, or with the engine; `async with` unpins at the end.
    """

    def __init__(
        self,
        number: int,
        num_tokens: int,
        pool: Address[UnpinPrefix],
        ttl: float | None,
        *,
        on_end: Callable[["Pin"], None],
    ) -> None:
        self.number = number
        self.num_tokens = num_tokens  # in whole blocks: as many as can be found
        self._pool = pool
        self._on_end = on_end
        self._is_held = True
        self._timer = None if ttl is None else asyncio.get_running_loop().call_later(ttl, self.end)

    @property
    def is_held(self) -> bool:
        """Whether it has not ended yet."""
        return self._is_held

    async def unpin(self) -> None:
        """Let go: the content is cached like any other again. Idempotent."""
        self.end()

    def end(self) -> None:
        if not self._is_held:
            return
        self._is_held = False
        if self._timer is not None:
            self._timer.cancel()
        self._pool(UnpinPrefix(self.number))
        self._on_end(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
