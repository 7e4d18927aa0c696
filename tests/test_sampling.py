"""The sampler against a float64 reference, and what must not change its draws."""

from typing import Any

import numpy as np
import pytest

from stepahead.gpu.noise import gumbel, noise_bits, row_keys
from stepahead.gpu.sampling import SamplingRows, are_greedy, sample
from stepahead.gpu.slots import SlotTables
from stepahead.gpu.typical import is_typical
from stepahead.messages import Floats, frozen_ints, frozen_longs
from stepahead.messages.arrays import NO_INTS, NO_LONGS

from .device_driver import make_plan, make_row
from .sampling_reference import probabilities

VOCAB = 40


def make_rows(count: int, **columns: Any) -> SamplingRows:
    """Rows at temperature 1 with seed 0 and positions 0, 1, 2, …; `columns` are per row or one."""
    defaults: dict[str, Any] = {
        "temperature": (1.0, np.float32),
        "top_k": (0, np.int32),
        "top_p": (1.0, np.float32),
        "min_p": (0.0, np.float32),
        "typical_p": (1.0, np.float32),
        "seed": (0, np.int64),
        "index": (0, np.int32),
        "positions": (np.arange(count), np.int32),
    }
    banned = columns.pop("banned_ids", ((),) * count)
    arrays = {
        name: np.broadcast_to(np.asarray(columns.get(name, value), dtype=kind), (count,)).copy()
        for name, (value, kind) in defaults.items()
    }
    return SamplingRows(**arrays, banned_ids=tuple(banned))


def make_logits(count: int, vocab: int = VOCAB, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0, 2, (count, vocab)).astype(np.float32)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("top_k", [0, 300, 600])
def test_what_is_kept_of_a_large_vocabulary_is_exact(top_k: int, top_p: float) -> None:
    count = 400
    logits = make_logits(1, vocab=2000) * 0.4  # flat: more tokens than the first look sees
    allowed = probabilities(logits[0], top_k=top_k, top_p=top_p) > 0

    rows = make_rows(count, top_k=top_k, top_p=top_p)
    drawn = sample(logits.repeat(count, axis=0), rows)

    # One token at the edge of top-p may fall either way by rounding.
    assert (~allowed[drawn]).sum() <= 1
    assert len(set(drawn.tolist())) > 0.2 * min(allowed.sum(), count)


@pytest.mark.parametrize("typical_p", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("spread", [0.05, 2])
def test_what_is_typical_of_a_large_vocabulary_is_exact(typical_p: float, spread: float) -> None:
    """Of flat logits more tokens are kept than any look before the last one sees."""
    logits = make_logits(1, vocab=6_000) * np.float32(spread)
    kept = logits > np.quantile(logits, 0.1)
    expected = probabilities(np.where(kept, logits, -np.inf)[0], typical_p=typical_p) > 0

    found = is_typical(logits, kept, np.array([typical_p], dtype=np.float32))[0]

    # One token at the edge may fall either way by rounding.
    assert np.count_nonzero(found != expected) <= 1
    assert 0 < np.count_nonzero(found) <= np.count_nonzero(kept)


@pytest.mark.parametrize(
    ("changes", "position", "are_plain"),
    [
        ({}, 3, True),
        ({"temperature": 0.5}, 3, False),
        ({"min_end": 4, "banned_ids": (7,)}, 3, False),
        ({"min_end": 4, "banned_ids": (7,)}, 4, True),
        ({"min_end": 4}, 3, True),
    ],
    ids=["greedy", "hot", "banned", "banned no more", "nothing to ban"],
)
def test_rows_are_greedy_while_no_one_draws_and_nothing_is_banned(
    changes: dict[str, Any], position: int, are_plain: bool
) -> None:
    tables = SlotTables(3, 16, 4)
    others = [make_row(slot, [1, 2, 3], [slot]) for slot in (0, 2)]
    tables.apply(make_plan(0, [], [*others, make_row(1, [1, 2, 3], [1], **changes)]))

    assert are_greedy(tables, frozen_longs([0, 2]), frozen_ints([3, 3]))
    assert are_greedy(tables, frozen_longs([2, 1]), frozen_ints([3, position])) == are_plain
    assert are_greedy(tables, NO_LONGS, NO_INTS)


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = make_logits(8)

    drawn = sample(logits.copy(), make_rows(8, temperature=0.0))

    assert drawn.tolist() == logits.argmax(axis=-1).tolist()


@pytest.mark.parametrize("temperature", [1e-4, 1e-12, 1e-38])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = make_logits(8) * 100

    drawn = sample(logits.copy(), make_rows(8, temperature=temperature))

    assert drawn.tolist() == logits.argmax(axis=-1).tolist()


@pytest.mark.parametrize("top_k", [0, VOCAB, 10**7])
def test_a_top_k_of_the_whole_vocabulary_or_more_is_off(top_k: int) -> None:
    logits = make_logits(64)

    drawn = sample(logits.copy(), make_rows(64, top_k=top_k))

    assert drawn.tolist() == sample(logits.copy(), make_rows(64)).tolist()


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits = make_logits(16)
    columns = {
        "temperature": np.linspace(0, 2, 16),
        "top_k": np.arange(16) % 5,
        "top_p": np.linspace(0.4, 1, 16),
        "min_p": np.linspace(0, 0.1, 16),
        "seed": np.arange(16),
        "positions": np.arange(16) * 3,
    }
    together = sample(logits.copy(), make_rows(16, **columns))

    alone = [
        int(sample(logits[[r]].copy(), make_rows(1, **{k: v[r] for k, v in columns.items()}))[0])
        for r in range(16)
    ]

    assert together.tolist() == alone


def test_seeds_and_positions_give_different_draws() -> None:
    logits = np.zeros((200, VOCAB), dtype=np.float32)

    by_position = sample(logits.copy(), make_rows(200))
    by_seed = sample(logits.copy(), make_rows(200, seed=np.arange(200), positions=0))
    high_seed = sample(logits.copy(), make_rows(200, seed=np.arange(200) << 32, positions=0))

    assert len(set(by_position.tolist())) > 30
    assert len(set(by_seed.tolist())) > 30
    assert len(set(high_seed.tolist())) > 30


def test_banned_ids_are_never_drawn() -> None:
    logits = np.zeros((500, 4), dtype=np.float32)

    drawn = sample(logits, make_rows(500, banned_ids=((0, 2),) * 500))

    assert set(drawn.tolist()) == {1, 3}


def test_banned_ids_bind_greedy_rows() -> None:
    logits = np.array([[5, 4, 3], [5, 4, 3]], dtype=np.float32)

    drawn = sample(logits, make_rows(2, temperature=0.0, banned_ids=((0,), ())))

    assert drawn.tolist() == [1, 0]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_row_that_is_not_numbers_fails_alone(poison: float) -> None:
    logits = make_logits(3)
    clean = sample(logits.copy(), make_rows(3))
    logits[1, 7] = poison

    drawn = sample(logits, make_rows(3))

    assert drawn.tolist() == [clean[0], -1, clean[2]]


def test_noise_is_the_documented_function_of_its_words() -> None:
    def mix(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D & 0xFFFFFFFF
        x ^= x >> 15
        x = x * 0x846CA68B & 0xFFFFFFFF
        return x ^ x >> 16

    seed, position, token = 0x123456789ABCDEF, 77, 1234
    low, high = seed & 0xFFFFFFFF, seed >> 32
    first = mix(mix(mix(mix(low) ^ high) ^ 2) ^ position)
    second = mix(mix(mix(position ^ 0x9E3779B9) ^ low) ^ (high + 2))

    key0, key1 = row_keys(np.array([seed]), np.array([position]), index=2)
    bits = noise_bits(key0[0], key1[0], np.array([token], dtype=np.uint32))

    assert (int(key0[0]), int(key1[0])) == (first, second)
    assert int(bits[0]) == mix(mix(token ^ first) ^ second)


def test_noise_is_standard_gumbel_without_nan() -> None:
    key0, key1 = row_keys(np.array([5]), np.array([1]))
    words = noise_bits(key0[0], key1[0], np.arange(1_000_000, dtype=np.uint32))
    edges = gumbel(np.array([0, 2**32 - 1], dtype=np.uint32))

    noise = gumbel(words)

    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02
    assert edges[0] > 20
    assert edges[1] == -np.inf
    assert not np.isnan(noise).any()
