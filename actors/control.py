"""Control: what an operator does to a live engine, beside its requests."""

import itertools
from typing import TypeAlias

from ..gpu.device import DeviceFacts
from ..kvpool import prefix_root
from ..messages import (
    ConfigError,
    Pause,
    PinPrefix,
    RequestRejected,
    ResetPrefixCache,
    Resume,
    frozen_ints,
)
from .actor import Address
from .intake import Conversation, Intake, Prompt
from .kvpool import CacheControl
from .pin import Pin
from .request_options import check_salt, check_seconds, salt_bytes

SchedulerControl: TypeAlias = Pause | Resume


class Control:
    """Posts to Scheduler and KVPool; owns the pins that callers hold."""

    def __init__(
        self,
        facts: DeviceFacts,
        intake: Intake,
        *,
        prefix_caching: bool,
        scheduler: Address[SchedulerControl],
        pool: Address[CacheControl],
    ) -> None:
        self._facts = facts
        self._intake = intake
        self._prefix_caching = prefix_caching
        self._scheduler = scheduler
        self._pool = pool
        self._pins: set[Pin] = set()
        self._numbers = itertools.count(1)

    def pause(self) -> None:
        self._scheduler(Pause())

    def resume(self) -> None:
        self._scheduler(Resume())

    def reset_prefix_cache(self) -> None:
        self._pool(ResetPrefixCache())

    async def pin_prefix(
        self, prompt: Prompt | Conversation, *, cache_salt: str | None, ttl: float | None
    ) -> Pin:
        """Raises RequestRejected for what can never be found, ConfigError without a cache."""
        if not self._prefix_caching:
            raise ConfigError("prefix_caching is off; there is no cache to pin a prefix in")
        check_salt(cache_salt)
        check_seconds("ttl", ttl)
        token_ids = await self._intake.prefix_ids(prompt)
        size = self._facts.block_size
        num_tokens = len(token_ids) // size * size
        if not num_tokens:
            raise RequestRejected(
                f"the prefix has {len(token_ids)} tokens; "
                f"whole blocks are cached, so it must have at least {size}"
            )
        pin = Pin(next(self._numbers), num_tokens, self._pool, ttl, on_end=self._pins.discard)
        self._pins.add(pin)
        root = prefix_root(salt_bytes(cache_salt))
        self._pool(PinPrefix(pin.number, root, frozen_ints(token_ids[:num_tokens])))
        return pin

    def close(self) -> None:
        """Nothing is pinned any more, and no timer is left."""
        for pin in list(self._pins):
            pin.end()
