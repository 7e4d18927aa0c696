"""Matrices of few bits: what they hold is what was given, or near it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from stepahead.gpu.loading.dequantise import Q4_0, Q4_1, Q8_0, dequantise, layout_of

from .interpreter import int4_linear, int8_linear, packing, random_tensor

KINDS = {"Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0}


def blocks(kind: int, rows: int, cols: int) -> Tensor:
    """Any bits, but scales that are numbers."""
    size = layout_of(kind).num_bytes
    generator = torch.Generator().manual_seed(kind)
    shape = (rows * cols // 32, size)
    data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    halves = torch.randn((len(data), 2), generator=generator).half().view(torch.uint8)
    data[:, :2] = halves[:, :2]
    if kind == Q4_1:
        data[:, 2:4] = halves[:, 2:]
    elif kind == Q8_0:
        data[:, 2:][data[:, 2:] == 128] = 0  # ggml makes no -128
    return data.flatten()


def widened(matrix: int4_linear.Int4Matrix | int8_linear.Int8Matrix) -> Tensor:
    if isinstance(matrix, int4_linear.Int4Matrix):
        return int4_linear.int4_widened_reference(matrix, torch.float32)
    return int8_linear.int8_widened_reference(matrix, torch.float32)


def numbers(*shape: int) -> Tensor:
    return random_tensor(1, *shape, dtype=torch.float32)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 32), (5, 288), (16, 256)])
def test_a_files_blocks_keep_every_bit(name: str, rows: int, cols: int) -> None:
    kind = KINDS[name]
    data = blocks(kind, rows, cols)

    matrix = packing.packed_blocks(kind, data, rows, cols)

    expected = torch.from_numpy(dequantise(data.numpy(), kind)).view(rows, cols)
    assert (matrix.out_features, matrix.in_features) == (rows, cols)
    assert torch.equal(widened(matrix), expected)


def test_a_type_with_more_to_it_has_no_packing() -> None:
    assert [packing.has_packing(kind) for kind in (0, 1, Q4_0, Q4_1, Q8_0, 12)] == [
        False, False, True, True, True, False,
    ]  # fmt: skip


def test_four_bits_are_off_by_half_a_scale_at_most() -> None:
    values = numbers(9, 288)

    given = widened(packing.quantised_4(values))

    groups = values.view(9, 9, 32)
    spread = (groups.amax(dim=2) - groups.amin(dim=2)).repeat_interleave(32, dim=1)
    # And what float16 rounds a scale and a minimum by.
    assert ((given - values).abs() <= spread / 30 + 2**-9).all()


def test_eight_bits_are_off_by_half_a_scale_at_most() -> None:
    values = numbers(9, 288)

    given = widened(packing.quantised_8(values))

    largest = values.abs().amax(dim=1, keepdim=True)
    assert ((given - values).abs() <= largest / 254 * 1.0001).all()


@pytest.mark.parametrize("quantise", [packing.quantised_4, packing.quantised_8])
def test_numbers_that_are_all_alike_are_kept(quantise: object) -> None:
    assert callable(quantise)
    values = torch.zeros(2, 64)
    values[1] = 0.25

    assert torch.equal(widened(quantise(values)), values)


def test_matrices_below_one_another_are_one() -> None:
    upper, lower = numbers(3, 64), numbers(2, 64) * 3
    for quantise in (packing.quantised_4, packing.quantised_8):
        parts = [quantise(upper), quantise(lower)]

        whole = widened(packing.joined(parts))

        assert torch.equal(whole, torch.cat([widened(part) for part in parts]))


def test_rows_can_be_put_in_another_order() -> None:
    order = torch.from_numpy(np.random.default_rng(1).permutation(6))
    data = blocks(Q8_0, 6, 64)
    for matrix in (packing.quantised_4(numbers(6, 64)), packing.packed_blocks(Q8_0, data, 6, 64)):
        assert torch.equal(widened(packing.reordered(matrix, order)), widened(matrix)[order])
