"""Floors: what a model's steps and whole workloads cost at least on one H200."""

import random
from dataclasses import replace

import pytest

from stepahead.gpu import roofline
from stepahead.gpu.cuda.shapes import shape_named
from stepahead.gpu.roofline import H200, Length, ModelCost, cost_of


def cost(name: str) -> ModelCost:
    return cost_of(shape_named(name))


def bench_lengths() -> list[Length]:
    """The requests of nano-vllm's benchmark: 256, drawn from seed 0."""
    draw = random.Random(0)
    prompts = []
    for _ in range(256):
        prompts.append(draw.randint(100, 1024))
        for _ in range(prompts[-1]):
            draw.randint(0, 10_000)
    return [Length(prompt, draw.randint(100, 1024)) for prompt in prompts]


@pytest.mark.parametrize(
    ("name", "billions", "gigabytes", "milliseconds", "kv_bytes"),
    [
        ("llama-3.1-8b", 8.03, 15.01, 3.49, 131_072),
        ("qwen3-0.6b", 0.60, 1.19, 0.277, 114_688),
        ("qwen3-14b", 14.77, 27.98, 6.51, 163_840),
        ("llama-3.2-1b", 1.24, 2.47, 0.575, 32_768),
    ],
)
def test_a_decode_step_reads_all_weights_but_the_embedding_table(
    name: str, billions: float, gigabytes: float, milliseconds: float, kv_bytes: int
) -> None:
    found = cost(name)

    assert found.num_params / 1e9 == pytest.approx(billions, abs=0.005)
    assert found.weight_bytes / 1e9 == pytest.approx(gigabytes, abs=0.006)
    assert 1e3 * found.weight_bytes / H200.bandwidth == pytest.approx(milliseconds, rel=0.002)
    assert found.kv_bytes == kv_bytes


@pytest.mark.parametrize(
    ("name", "rows", "milliseconds"),
    [
        ("llama-3.1-8b", 1, [3.51, 3.55, 3.74, 4.49]),
        ("llama-3.1-8b", 8, [3.62, 3.99, 5.49, 11.5]),
        ("llama-3.1-8b", 32, [3.99, 5.49, 11.5]),
        ("llama-3.1-8b", 64, [4.49, 7.49, 19.5]),
        ("llama-3.1-8b", 128, [5.49, 11.5]),
        ("llama-3.1-8b", 256, [7.49, 19.5]),
        ("qwen3-0.6b", 1, [0.29, 0.33, 0.50]),
        ("qwen3-0.6b", 8, [0.39, 0.71, 2.03]),
        ("qwen3-0.6b", 32, [0.72, 2.03, 7.27]),
        ("qwen3-0.6b", 64, [1.15, 3.77, 14.3]),
        ("qwen3-0.6b", 128, [2.03, 7.27, 28.3]),
        ("qwen3-0.6b", 256, [3.78, 14.3]),
    ],
)
def test_the_floor_of_a_step_is_its_weights_and_its_keys_and_values(
    name: str, rows: int, milliseconds: list[float]
) -> None:
    lengths = (512, 2_048, 8_192, 32_768)[: len(milliseconds)]

    found = [1e3 * roofline.decode_step_s(cost(name), H200, rows, n) for n in lengths]

    assert found == pytest.approx(milliseconds, rel=0.01, abs=0.005)


def test_arithmetic_takes_over_where_a_step_has_many_tokens() -> None:
    large = cost("llama-3.1-8b")
    slope = large.flops_per_token / H200.flops_rate

    assert 1e6 * slope == pytest.approx(19, rel=0.01)
    assert large.weight_bytes / H200.bandwidth / slope == pytest.approx(184, abs=1)
    assert roofline.decode_step_s(large, H200, 4_096, 0) == pytest.approx(4_096 * slope)


@pytest.mark.parametrize(
    ("name", "seconds", "tokens_per_s"),
    [("qwen3-0.6b", 3.68, 36_400), ("qwen3-14b", 16.1, 8_300), ("llama-3.1-8b", 9.8, 13_600)],
)
def test_the_floor_of_a_batch_whose_answers_differ_in_length(
    name: str, seconds: float, tokens_per_s: float
) -> None:
    lengths = bench_lengths()
    output = sum(length.output for length in lengths)

    found = roofline.batch_s(cost(name), H200, lengths)

    assert (sum(length.prompt for length in lengths), output) == (142_827, 133_966)
    assert found == pytest.approx(seconds, rel=0.005)
    assert output / found == pytest.approx(tokens_per_s, rel=0.01)


def test_the_floor_of_32_answers_of_8192_tokens() -> None:
    lengths = [Length(1, 8_192)] * 32

    assert roofline.batch_s(cost("llama-3.1-8b"), H200, lengths) == pytest.approx(61.3, rel=0.002)


def test_the_floor_of_a_server_that_is_always_full() -> None:
    found = roofline.steady_tokens_per_s(cost("llama-3.1-8b"), H200, Length(1_000, 1_000), rows=616)

    assert found == pytest.approx(11_200, rel=0.005)


def test_a_batch_does_not_depend_on_the_order_of_its_requests() -> None:
    lengths = [Length(5, 3), Length(1, 9), Length(7, 1), Length(2, 3)]
    small = cost("tiny")

    found = roofline.batch_s(small, H200, lengths)

    assert roofline.batch_s(small, H200, lengths[::-1]) == pytest.approx(found, rel=1e-12)


def test_a_batch_costs_what_its_steps_cost_one_by_one() -> None:
    small, lengths = cost("tiny"), [Length(5, 3), Length(1, 9), Length(7, 1)]
    expected = roofline.batch_s(small, H200, [replace(n, output=1) for n in lengths])
    for step in range(1, 9):
        alive = [n.prompt + step for n in lengths if n.output > step]
        moved = small.weight_bytes + small.kv_bytes * (sum(alive) + len(alive))
        expected += max(
            moved / H200.bandwidth, len(alive) * small.flops_per_token / H200.flops_rate
        )

    assert roofline.batch_s(small, H200, lengths) == pytest.approx(expected, rel=1e-12)


def test_what_rows_share_is_read_once() -> None:
    large = cost("llama-3.1-8b")
    alone = roofline.decode_step_s(large, H200, 64, 1_100)

    shared = roofline.shared_step_s(large, H200, 64, shared=1_000, groups=1, own=100)

    saved = 63 * 1_000 * large.kv_bytes / H200.bandwidth
    assert alone - shared == pytest.approx(saved, rel=1e-9)


def test_a_prefix_that_is_cached_leaves_its_products_out_and_its_attention_in() -> None:
    large = cost("llama-3.1-8b")

    whole = roofline.prefill_s(large, H200, 1_000)
    parts = roofline.prefill_s(large, H200, 600) + roofline.prefill_s(large, H200, 400, cached=600)

    assert parts == pytest.approx(whole, rel=1e-9)
    assert roofline.prefill_s(large, H200, 400) < whole - roofline.prefill_s(large, H200, 600)
