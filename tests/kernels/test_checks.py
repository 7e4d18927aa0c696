"""The checks that a GPU is given hold in the interpreter, and they see what is wrong."""

import pytest
import torch

from .interpreter import DTYPES  # before any kernel

from stepahead.gpu.kernels.checks import CHECKS, Check, run_check  # isort: skip
from stepahead.gpu.kernels.gate import builds  # isort: skip
from stepahead.gpu.kernels.checks.check import Bench, Pair, share_of  # isort: skip

CPU = torch.device("cpu")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_of_a_gpu_holds_in_the_interpreter(check: Check) -> None:
    verdict = run_check(check, CPU, torch.bfloat16)

    assert verdict.fault is None
    assert verdict.worst <= 1.0


def test_every_kernel_that_ships_is_checked() -> None:
    shipped = {build.kernel.__name__ for build in builds()}

    assert shipped == {kernel.__name__ for check in CHECKS for kernel in check.kernels}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_difference_is_told_as_a_share_of_what_is_allowed(dtype: torch.dtype) -> None:
    expected = torch.tensor([0.5, 4.0], dtype=dtype)
    step = {torch.float32: 2.0**-20, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[dtype]
    given = expected + torch.tensor([0.0, 8 * step], dtype=dtype)

    assert share_of(Pair(given, expected, ulps=4)) == 0.5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.tensor([float("nan")]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([float("inf")])),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.zeros(2), torch.zeros(3)),
    ],
)
def test_what_cannot_be_compared_is_as_wrong_as_can_be(
    given: torch.Tensor, expected: torch.Tensor
) -> None:
    assert share_of(Pair(given, expected)) == float("inf")


def test_infinities_and_absent_numbers_may_be_what_is_expected() -> None:
    value = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])

    assert share_of(Pair(value, value.clone())) == 0.0


def test_a_kernel_that_raises_is_told_and_does_not_end_the_others() -> None:
    def fails(bench: Bench) -> list[Pair]:
        raise RuntimeError("no kernel image\nis available")

    verdict = run_check(Check("broken", fails, ()), CPU, torch.float32)

    assert not verdict.is_fit
    assert verdict.fault == "RuntimeError: no kernel image"


def test_tensors_keep_their_strides_on_the_device() -> None:
    bench = Bench(CPU, torch.float32)
    padded = bench.random(1, 3, 2, 4, padding=5)

    moved = bench.there({"x": (padded, 1)})["x"][0]

    assert moved.stride() == padded.stride() == (13, 4, 1)
    assert torch.equal(moved, padded)
    assert moved.data_ptr() != padded.data_ptr()
