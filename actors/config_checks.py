"""What the numbers of a configuration may be, and how they must agree with each other."""

from typing import Protocol

from ..messages import ConfigError

MOST = {
    "kv_memory": 2**63 - 1,
    "swap_memory": 2**63 - 1,
    "num_host_blocks": 2**24,
    "num_blocks": 2**24,  # each costs the pool about a hundred bytes beside its KV
    "max_num_seqs": 2**16,
}
MOST_OTHERWISE = 2**31 - 1


class Limits(Protocol):
    """The part of EngineConfig that is looked at here."""

    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int | None: ...
    @property
    def kv_memory(self) -> int | None: ...
    @property
    def num_host_blocks(self) -> int | None: ...
    @property
    def swap_memory(self) -> int | None: ...
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int | None: ...
    @property
    def long_prefill_token_threshold(self) -> int | None: ...


def check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
    most = MOST.get(name, MOST_OTHERWISE)
    if value > most:
        raise ConfigError(f"{name} is {value}; it must be at most {most:,}")


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_agreement(limits: Limits) -> None:
    """Raise ConfigError where two limits contradict each other."""
    _check_pool(limits)
    tokens, threshold = limits.max_num_batched_tokens, limits.long_prefill_token_threshold
    if tokens is None:
        return
    if tokens < limits.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens is {tokens}, less than max_num_seqs, which is "
            f"{limits.max_num_seqs}; a step must have a token for every running sequence"
        )
    if threshold is not None and threshold > tokens:
        raise ConfigError(
            f"long_prefill_token_threshold is {threshold}, more than max_num_batched_tokens, "
            f"which is {tokens}; it would never cut a chunk"
        )


def _check_pool(limits: Limits) -> None:
    if limits.num_host_blocks is not None and limits.swap_memory is not None:
        raise ConfigError("num_host_blocks and swap_memory both say how much is swapped; give one")
    longest, num_blocks = limits.max_model_len, limits.num_blocks
    if longest == 1:
        raise ConfigError("max_model_len is 1; it must be at least 2: a prompt and its answer")
    if num_blocks is None:
        return
    if limits.kv_memory is not None:
        raise ConfigError("num_blocks and kv_memory both say how large the pool is; give one")
    room = num_blocks * limits.block_size
    if room < 2:
        raise ConfigError("the pool has a single position; it must have 2: a prompt and its answer")
    if longest is not None and longest > room:
        raise ConfigError(
            f"max_model_len is {longest}, but the pool has {room} positions ({num_blocks} blocks "
            f"of {limits.block_size}); it must hold one sequence of that length"
        )
