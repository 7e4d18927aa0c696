"""The age of cached prefixes: when the pool is told the time (rule 17)."""

from .block_client import BlockClient
from .limits import TTL_TICKS


class PrefixAge:
    """Has content forgotten that nobody has used for its time to live.

    While the engine is busy it looks some times within a time to live, at the beginning of a turn;
    once it is idle, one last time when everything has become too old.
    """

    def __init__(self, ttl_ns: int, blocks: BlockClient) -> None:
        self._ttl_ns = ttl_ns
        self._blocks = blocks
        self._next_ns = 0
        self._last_ns: int | None = None  # when everything used until now will be too old

    def pass_time(self, now_ns: int, *, is_idle: bool) -> None:
        """A turn begins."""
        if not is_idle:
            self._last_ns = now_ns + self._ttl_ns
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + self._ttl_ns // TTL_TICKS
        self._blocks.forget_unused(now_ns, now_ns - self._ttl_ns)
        if self._last_ns is not None and self._last_ns <= now_ns:
            self._last_ns = None

    @property
    def due_ns(self) -> int | None:
        """When an idle engine has to look."""
        return self._last_ns
