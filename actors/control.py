"""Control: what an operator does to a live engine, beside its requests."""

import asyncio
import itertools
from typing import TypeAlias

from ..gpu.device import DeviceFacts
from ..kvpool import prefix_root
from ..messages import (
    ConfigError,
    ModelError,
    Pause,
    PinPrefix,
    ReloadWeights,
    RequestRejected,
    ResetPrefixCache,
    Resume,
    WeightsLoaded,
    frozen_ints,
)
from .actor import Address
from .intake import Intake
from .kvpool import CacheControl
from .pin import Pin
from .prompt_texts import Conversation, Prompt
from .request_options import check_salt, check_seconds, salt_bytes
from .streams import OutputStreams

SchedulerControl: TypeAlias = Pause | Resume | ReloadWeights


class Control:
    """Posts to Scheduler and KVPool; owns the pins that callers hold."""

    def __init__(
        self,
        facts: DeviceFacts,
        intake: Intake,
        streams: OutputStreams,
        *,
        prefix_caching: bool,
        scheduler: Address[SchedulerControl],
        pool: Address[CacheControl],
    ) -> None:
        self._facts = facts
        self._intake = intake
        self._streams = streams
        self._prefix_caching = prefix_caching
        self._scheduler = scheduler
        self._pool = pool
        self._loading: asyncio.Future[WeightsLoaded | None] | None = None
        self._pins: set[Pin] = set()
        self._numbers = itertools.count(1)

    # Planning

    def pause(self) -> None:
        self._scheduler(Pause())

    def resume(self) -> None:
        self._intake.is_draining = False
        self._scheduler(Resume())

    async def drain(self, timeout: float | None) -> bool:
        """Whether every request has ended; those that come meanwhile are refused. Raises
        RequestRejected for a timeout without meaning; 0 only looks."""
        if timeout != 0:
            check_seconds("timeout", timeout)
        self._intake.is_draining = True
        self._scheduler(Resume())  # a paused engine would never come to an end
        try:
            await asyncio.wait_for(self._streams.wait_empty(), timeout)
        except TimeoutError:
            return not len(self._streams)
        return True

    # Weights

    async def reload_weights(self, source: str) -> None:
        """Have the device load other weights, one reload after the other. Raises ModelError where
        it kept what it had. It goes on if the caller is cancelled."""
        while self._loading is not None:
            await asyncio.wait({self._loading})
        self._streams.check_alive()
        self._loading = asyncio.get_running_loop().create_future()
        self._scheduler(ReloadWeights(source))
        loaded = await asyncio.shield(self._loading)
        if loaded is None:
            self._streams.check_alive()
        elif loaded.error is not None:
            raise ModelError(loaded.error)

    def weights_loaded(self, loaded: WeightsLoaded | None) -> None:
        """The device has said what came of it, or will not any more."""
        if self._loading is not None:
            self._loading.set_result(loaded)
            self._loading = None

    # The prefix cache

    def reset_prefix_cache(self) -> None:
        self._pool(ResetPrefixCache())

    async def pin_prefix(
        self, prompt: Prompt | Conversation, *, cache_salt: str | None, ttl: float | None
    ) -> Pin:
        """Raises RequestRejected for what can never be found, ConfigError without a cache,
        EngineDead when there is no engine any more."""
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
        self._streams.check_alive()
        pin = Pin(next(self._numbers), num_tokens, self._pool, ttl, on_end=self._pins.discard)
        self._pins.add(pin)
        root = prefix_root(salt_bytes(cache_salt))
        self._pool(PinPrefix(pin.number, root, frozen_ints(token_ids[:num_tokens])))
        return pin

    def close(self) -> None:
        """The engine is over: nothing is pinned or loaded any more, and no timer is left."""
        self.weights_loaded(None)
        for pin in list(self._pins):
            pin.end()
