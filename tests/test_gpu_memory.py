"""How much KV fits beside a model on a GPU: given numbers, known answers."""

from typing import Any

import pytest

from stepahead.gpu.cuda.memory import MemoryProfile, check_weights, size_gpu_pool
from stepahead.gpu.options import DeviceOptions
from stepahead.messages import ConfigError

GB = 10**9


def options(**given: Any) -> DeviceOptions:
    return DeviceOptions(**{"model": "m", "num_slots": 1_000, "block_size": 16, **given})


def profile(**changes: int) -> MemoryProfile:
    """A GPU of 100 GB with 16 GB of weights."""
    given = {"total": 100 * GB, "free": 80 * GB, "weights": 16 * GB, "work": 2 * GB, "graphs": GB}
    return MemoryProfile(**{**given, **changes})


def blocks(options: DeviceOptions, profile: MemoryProfile, context: int = 100_000) -> int:
    """Of 1.6 MB each."""
    return size_gpu_pool(
        options, profile, context_length=context, position_bytes=100_000
    ).num_blocks


def test_what_is_free_beyond_the_fraction_steps_and_graphs_goes_to_keys_and_values() -> None:
    room = 80 - 10 - 2 - 1  # GB free, of them kept back, for steps, for graphs

    assert blocks(options(), profile()) == room * GB // 1_600_000


@pytest.mark.parametrize("fraction", [0.5, 0.75, 1.0])
def test_a_fraction_counts_from_all_memory_whoever_else_uses_it(fraction: float) -> None:
    room = 80 - (1 - fraction) * 100 - 3

    assert blocks(options(gpu_memory_fraction=fraction), profile()) == room * GB // 1_600_000


def test_there_are_no_more_blocks_than_every_slot_could_fill() -> None:
    assert blocks(options(num_slots=10), profile(), context=160) == 10 * 10
    assert blocks(options(num_slots=10, max_model_len=33), profile(), context=160) == 10 * 3


def test_what_is_asked_for_is_given_where_it_fits() -> None:
    assert blocks(options(num_blocks=7), profile()) == 7
    assert blocks(options(kv_memory=16_000_000), profile()) == 10


@pytest.mark.parametrize(
    ("given", "changes", "needed"),
    [
        ({"num_blocks": 50_000}, {}, "99.00 GB"),
        ({"kv_memory": 80 * GB}, {}, "99.00 GB"),
        ({"max_model_len": 800_000}, {}, "99.00 GB"),
        ({}, {"free": 13 * GB}, "19.00 GB"),
        ({}, {"work": 70 * GB}, "87.00 GB"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_it_needs_what_is_free_and_what_there_is(
    given: dict[str, Any], changes: dict[str, int], needed: str
) -> None:
    found = profile(**changes)
    free = found.free + found.weights

    with pytest.raises(ConfigError) as raised:
        blocks(options(**given), found, context=1_000_000)

    message = str(raised.value)
    assert f"m needs {needed} of the GPU's memory (16.00 GB of weights" in message
    assert f"{free / GB:.2f} GB are free of 100.00 GB" in message
    assert "gpu_memory_fraction 0.9 keeps 10.00 GB back" in message


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded() -> None:
    check_weights(options(), 80 * GB, free=90 * GB, total=100 * GB)

    with pytest.raises(ConfigError, match=r"m needs 80.00 GB .*; 89.99 GB are free of 100.00 GB"):
        check_weights(options(), 80 * GB, free=90 * GB - 10**7, total=100 * GB)


def test_a_sequence_may_be_as_long_as_the_model_and_the_pool_allow() -> None:
    found = size_gpu_pool(
        options(num_blocks=4), profile(), context_length=1_000, position_bytes=100
    )

    assert found.max_model_len == 64
