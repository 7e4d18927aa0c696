"""What an operator may do to a live engine: part of Engine."""

from abc import ABC, abstractmethod
from pathlib import Path

from .backend import Backend, weights_source
from .offload import Offload
from .pin import Pin
from .prompt_texts import Conversation, Prompt
from .wiring import Wiring


class EngineControl(ABC):
    """Pausing, draining, other weights, the prefix cache."""

    _offload: Offload

    @property
    @abstractmethod
    def _started(self) -> Wiring:
        """The wiring of the running engine. Raises ConfigError before the start."""

    @property
    @abstractmethod
    def _opened(self) -> Backend:
        """The backend of the running engine. Raises ConfigError before the start."""

    async def pause(self) -> None:
        """Plan no further steps: what is in flight completes, requests wait, deadlines count."""
        self._started.control.pause()

    async def resume(self) -> None:
        """Go on after `pause`, and take requests again after `drain`."""
        self._started.control.resume()

    async def drain(self, timeout: float | None = None) -> bool:
        """Let the live requests finish; new ones raise EngineOverloaded, until `resume`.

        True when nothing is live any more, False when that took longer than `timeout` seconds:
        then what is live goes on. A paused engine goes on, too.
        """
        return await self._started.control.drain(timeout)

    async def reload_weights(self, model: str | Path) -> None:
        """Go on with the weights of another model of the same shape and vocabulary.

        Live requests keep what they said, and continue with the new weights; no cached prefix is
        used after. Raises ModelError where the weights cannot be loaded, and ConfigError where the
        device cannot load others: then all goes on with the old ones.
        """
        control, device = self._started.control, self._opened.device
        source = await self._offload(lambda: weights_source(device, model))
        await control.reload_weights(source)

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; what runs goes on."""
        self._started.control.reset_prefix_cache()

    async def pin_prefix(
        self,
        prompt: Prompt | Conversation,
        *,
        cache_salt: str | None = None,
        ttl: float | None = None,
    ) -> Pin:
        """Keep a prefix cached until it is unpinned, for `ttl` seconds at most: its blocks are
        given away last. What is not cached yet is kept from when a request first computes it.

        Raises RequestRejected for what can never be found.
        """
        return await self._started.control.pin_prefix(prompt, cache_salt=cache_salt, ttl=ttl)
